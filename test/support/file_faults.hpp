// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace acc::test {

/// A fault that file_faults.c injects into a process. Passed in environment variables.
struct FileFault {
  std::string what;                ///< "kill", or the name of an errno: "ENOSPC", "EBUSY"
  int at = 1;                      ///< number of the call, from 1
  std::filesystem::path under;     ///< only calls on files in this folder count
  std::filesystem::path hit;       ///< file that is created at the fault, with call and path
  std::string rank = {};           ///< only in this rank; if empty, in every process
  std::filesystem::path log = {};  ///< if not empty: file for a log of all counted calls

  [[nodiscard]] std::map<std::string, std::string> variables() const {
    std::map<std::string, std::string> all = {
        {"LD_PRELOAD", ACC_FILE_FAULTS},
        {"ASAN_OPTIONS", "verify_asan_link_order=0"},
        {"ACC_FAULT", what},
        {"ACC_FAULT_AT", std::to_string(at)},
        {"ACC_FAULT_UNDER", std::filesystem::weakly_canonical(under).string()},
        {"ACC_FAULT_HIT", hit.string()},
    };
    if (!rank.empty()) {
      all["ACC_FAULT_RANK"] = rank;
    }
    if (!log.empty()) {
      all["ACC_FAULT_LOG"] = log.string();
    }
    return all;
  }

  /// Text of the errno, as error messages show it.
  [[nodiscard]] std::string reason() const {
    static const std::map<std::string, std::string> kReasons = {
        {"ENOSPC", "No space left on device"},  {"EIO", "Input/output error"},
        {"EXDEV", "Invalid cross-device link"}, {"EPERM", "Operation not permitted"},
        {"EBUSY", "Device or resource busy"},   {"ENOTEMPTY", "Directory not empty"}};
    return kReasons.at(what);
  }
};

}  // namespace acc::test
