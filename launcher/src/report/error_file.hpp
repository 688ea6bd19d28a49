#pragma once

#include "report/machine_report.hpp"

#include <string>
#include <vector>

namespace acc::launcher {

/// What a worker left in its TORCHELASTIC_ERROR_FILE (PyTorch 2.13,
/// torch/distributed/elastic/multiprocessing/errors).
struct ErrorFile {
  std::string message;                 ///< empty: there is no such file
  std::vector<std::string> traceback;  ///< `extraInfo.py_callstack`, a line each
  std::string text;                    ///< the whole file, where it is an error file
};

/// Reads it; what cannot be understood is said in the message. Never waits, and reads no more than
/// 1 MiB, whatever the worker put there.
ErrorFile read_error_file(const std::string& path);

/// What torchrun leaves in its own TORCHELASTIC_ERROR_FILE: the text of the error file of the
/// worker that failed first, with its exit code, or minus its signal, as `message.errorCode`. Where
/// `text` is empty, one in the same form with what the report has, where torchrun leaves nothing.
std::string root_cause_file(const WorkerReport& worker, const std::string& text);

}  // namespace acc::launcher
