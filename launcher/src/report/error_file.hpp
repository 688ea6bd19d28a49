// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/machine_report.hpp"

#include <string>
#include <vector>

namespace acc::launcher::report {

/// Contents of a worker's TORCHELASTIC_ERROR_FILE, a JSON file that PyTorch writes when a Python
/// worker ends with an exception (PyTorch 2.13, torch/distributed/elastic/multiprocessing/errors).
struct ErrorFile {
  std::string message;                 ///< empty if there is no such file
  std::vector<std::string> traceback;  ///< lines of `extraInfo.py_callstack`
  std::string text;                    ///< the whole file; empty if it is not a valid error file
};

/// Reads an error file. If it cannot be read or parsed, `message` says why. Never blocks (on a FIFO
/// for example) and reads at most 1 MiB.
ErrorFile read_error_file(const std::string& path);

/// Returns the contents of the launcher's own TORCHELASTIC_ERROR_FILE, as torchrun writes it: the
/// error file of the root cause, in which `message.errorCode` is set to the worker's exit code, or
/// to minus its signal number. `text`: the worker's error file. If it is empty, a file in the same
/// format is composed from the report; torchrun writes none in that case.
std::string root_cause_file(const WorkerReport& worker, const std::string& text);

}  // namespace acc::launcher::report
