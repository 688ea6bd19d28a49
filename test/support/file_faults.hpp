#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace acc::test {

/// What file_faults.c shall do to a process, by environment variables.
struct FileFault {
  std::string what;                ///< "kill", or an errno's name: "ENOSPC", "EBUSY"
  int at = 1;                      ///< at which call
  std::filesystem::path under;     ///< whose calls count: those on files in this folder
  std::filesystem::path hit;       ///< is made when it happens, and tells where
  std::string rank = {};           ///< only in that rank; in every process where empty
  std::filesystem::path log = {};  ///< gets all the calls, where it is given

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

  /// What the user is told.
  [[nodiscard]] std::string reason() const {
    static const std::map<std::string, std::string> kReasons = {
        {"ENOSPC", "No space left on device"}, {"EIO", "Input/output error"},
        {"EXDEV", "Invalid cross-device link"}, {"EPERM", "Operation not permitted"},
        {"EBUSY", "Device or resource busy"},   {"ENOTEMPTY", "Directory not empty"}};
    return kReasons.at(what);
  }
};

}  // namespace acc::test
