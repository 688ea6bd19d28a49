// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "spawn/user.hpp"
#include "supervision/process_handle.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace acc::launcher::report {

/// The flight record of a worker and the files next to it whose names begin with its name. Only
/// regular files and FIFOs of the folder itself are used, no symbolic links and devices.
class RecordFiles {
 public:
  /// No files.
  RecordFiles() = default;
  /// The files of a worker of this launcher. `record`: path of the record; empty: none.
  explicit RecordFiles(const std::string& record);
  /// The files that the process of any user names, in the folders that this process sees. All of
  /// them are used with the rights of its user. No files if this process may not act as that user.
  RecordFiles(const supervision::ProcessHandle& process, const spawn::User& user,
              const std::string& record);

  /// True if these are files of another user.
  [[nodiscard]] bool are_foreign() const { return user_.has_value(); }
  // `suffix`: what follows the name of the record.
  /// Returns the content of a regular file; "" if there is none, or if it is larger than `limit`.
  [[nodiscard]] std::string read(const std::string& suffix, std::size_t limit) const;
  [[nodiscard]] bool has(const std::string& suffix) const;
  void remove(const std::string& suffix) const;
  /// Writes a byte to a FIFO. False if no process reads from it.
  [[nodiscard]] bool send(const std::string& suffix, char byte) const;

 private:
  [[nodiscard]] UniqueFd open(const std::string& suffix, int flags, mode_t type) const;

  std::shared_ptr<const UniqueFd> folder_;
  std::string name_;
  std::optional<spawn::User> user_;  // another one than that of this process
};

}  // namespace acc::launcher::report
