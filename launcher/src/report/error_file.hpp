#pragma once

#include <string>
#include <vector>

namespace acc::launcher {

/// What a worker left in its TORCHELASTIC_ERROR_FILE (PyTorch 2.13,
/// torch/distributed/elastic/multiprocessing/errors).
struct ErrorFile {
  std::string message;                 ///< empty: there is no such file
  std::vector<std::string> traceback;  ///< `extraInfo.py_callstack`, a line each
};

/// Reads it; what cannot be understood is said in the message.
ErrorFile read_error_file(const std::string& path);

}  // namespace acc::launcher
