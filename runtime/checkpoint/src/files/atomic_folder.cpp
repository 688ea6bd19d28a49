// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/atomic_folder.hpp"

#include "acc/base/object_store.hpp"
#include "files/atomic_target.hpp"

#include <utility>

namespace acc::checkpoint {

namespace fs = std::filesystem;

AtomicFolder::AtomicFolder(const fs::path& target, std::function<bool(const std::string&)> is_ours,
                           std::uint32_t id, Existing existing)
    : target_(is_object(target) ? object_group(target, std::move(is_ours))
                                : replaced_folder(target, std::move(is_ours), id, existing)) {}
AtomicFolder::AtomicFolder(AtomicFolder&&) noexcept = default;
AtomicFolder::~AtomicFolder() = default;

const fs::path& AtomicFolder::target() const noexcept {
  return target_->target;
}
const fs::path& AtomicFolder::temporary() const noexcept {
  return target_->temporary;
}
void AtomicFolder::make(const std::vector<std::string>& folders) {
  target_->make(folders);
}
void AtomicFolder::begin() {
  target_->begin();
}
void AtomicFolder::check_there() const {
  target_->check_there();
}
void AtomicFolder::commit() {
  target_->commit();
}
void AtomicFolder::abandon() noexcept {
  target_->abandon();
}
fs::path AtomicFolder::current() const {
  return target_->current();
}

void remove_at_once(const fs::path& folder) {
  is_object(folder) ? remove_objects(folder) : remove_folder_at_once(folder);
}

}  // namespace acc::checkpoint
