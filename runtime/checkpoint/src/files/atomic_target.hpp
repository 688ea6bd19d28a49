// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/atomic_folder.hpp"

#include <utility>

namespace acc::checkpoint {

/// The functions are those of AtomicFolder.
class AtomicTarget {
 public:
  /// at: the target, absolute and without symbolic links. filled: where it is filled.
  AtomicTarget(std::filesystem::path at, std::filesystem::path filled,
               std::function<bool(const std::string&)> may_hold)
      : target(std::move(at)), temporary(std::move(filled)), is_ours(std::move(may_hold)) {}
  virtual ~AtomicTarget() = default;
  AtomicTarget(const AtomicTarget&) = delete;
  AtomicTarget& operator=(const AtomicTarget&) = delete;

  virtual void make(const std::vector<std::string>& folders) = 0;
  virtual void begin() = 0;
  virtual void check_there() const = 0;
  virtual void commit() = 0;
  virtual void abandon() noexcept = 0;
  [[nodiscard]] virtual std::filesystem::path current() const = 0;

  const std::filesystem::path target, temporary;
  const std::function<bool(const std::string&)> is_ours;
};

std::unique_ptr<AtomicTarget> replaced_folder(const std::filesystem::path& target,
                                              std::function<bool(const std::string&)> is_ours,
                                              std::uint32_t id, Existing existing);
void remove_folder_at_once(const std::filesystem::path& folder);

/// target: is_object().
std::unique_ptr<AtomicTarget> object_group(const std::filesystem::path& target,
                                           std::function<bool(const std::string&)> is_ours);
void remove_objects(const std::filesystem::path& group);

}  // namespace acc::checkpoint
