// SPDX-License-Identifier: Apache-2.0
#include "convert/folder_output.hpp"

#include "acc/base/error.hpp"

#include <unistd.h>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

// The process id serves as the attempt's id: one conversion is one process.
NewFolder::NewFolder(const fs::path& target,
                     const std::function<bool(const std::string& path)>& is_ours, bool overwrite,
                     const std::vector<std::string>& folders)
    : folder_(target, is_ours, static_cast<std::uint32_t>(::getpid())) {
  const bool is_there = fs::exists(target) && !(fs::is_directory(target) && fs::is_empty(target));
  if (is_there && !overwrite) {
    throw Error(Errc::config, target.string() +
                                  " already exists; choose another folder, or --overwrite to "
                                  "replace the checkpoint in it");
  }
  folder_.begin();
  folder_.make(folders);
}

NewFolder::~NewFolder() {
  if (!committed_) {
    folder_.abandon();
  }
}

fs::path NewFolder::commit(const InputPath& from) {
  from.check_unchanged();
  folder_.commit();
  committed_ = true;
  return folder_.target();
}

}  // namespace acc::checkpoint::conversion
