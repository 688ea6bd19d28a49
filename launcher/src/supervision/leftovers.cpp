// SPDX-License-Identifier: Apache-2.0
#include "supervision/leftovers.hpp"

#include "acc/base/error.hpp"
#include "supervision/descendants.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

namespace acc::launcher::supervision {

Leftovers::Leftovers(const std::string& name)
    : cgroup_(name),
      guardian_group_(::getpgrp()),
      folder_(static_cast<char*>(
          ::mmap(nullptr, PATH_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (folder_ == MAP_FAILED) {
    throw Error(Errc::process, std::string("mmap failed: ") + std::strerror(errno));
  }
}

void Leftovers::add_folder(const std::string& folder) const noexcept {
  if (!folder.empty() && folder.size() < PATH_MAX) {
    // The first character is written last. If this process is killed before that, the other
    // processes still read an empty path, never a part of one.
    std::copy(folder.begin() + 1, folder.end(), folder_ + 1);
    std::atomic_ref(*folder_).store(folder.front(), std::memory_order_release);
  }
}

bool Leftovers::end_processes() noexcept {
  return end_descendants(&cgroup_, {.group = guardian_group_});
}

bool Leftovers::clean_up() noexcept {
  const bool all_ended = end_processes();
  if (all_ended) {  // else the kernel would refuse it
    cgroup_.remove();
  }
  if (std::atomic_ref(*folder_).load(std::memory_order_acquire) != '\0') {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  return all_ended;
}

}  // namespace acc::launcher::supervision
