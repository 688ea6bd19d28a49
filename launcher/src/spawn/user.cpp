// SPDX-License-Identifier: Apache-2.0
#include "spawn/user.hpp"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

// The system calls are made directly: they change this thread only, while glibc's setgroups() and
// setresuid() change all threads, also from a child that shares the memory of this process.
namespace acc::launcher::spawn {
namespace {

bool set_groups(const std::vector<gid_t>& groups) noexcept {
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0;
}

/// Sets the user and group that count for files. Both calls report no errors, only what was set
/// before; an invalid number changes nothing.
bool set_file_user(uid_t uid, gid_t gid) noexcept {
  constexpr auto kInvalid = static_cast<uid_t>(-1);
  ::setfsgid(gid);
  ::setfsuid(uid);
  return static_cast<gid_t>(::setfsgid(kInvalid)) == gid &&
         static_cast<uid_t>(::setfsuid(kInvalid)) == uid;
}

/// True if this thread may pass over the permissions of files.
bool has_rights_of_root() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  constexpr unsigned kOfFiles =
      1U << CAP_CHOWN | 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH | 1U << CAP_FOWNER;
  return ::syscall(SYS_capget, &header, sets.data()) != 0 || (sets[0].effective & kOfFiles) != 0;
}

}  // namespace

bool User::is_own() const noexcept {
  return uid == ::geteuid();
}

ActingAs::ActingAs(const User& user) noexcept : acts_(user.is_own()) {
  if (acts_ || ::geteuid() != 0) {
    return;
  }
  const int count = ::getgroups(0, nullptr);
  own_groups_.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  if (::getgroups(count, own_groups_.data()) != count || !set_groups(user.groups)) {
    return;
  }
  changed_ = true;
  // With SECBIT_NO_SETUID_FIXUP the kernel would leave root its capabilities.
  acts_ = set_file_user(user.uid, user.gid) && !has_rights_of_root();
  if (!acts_) {
    give_back();
    changed_ = false;
  }
}

ActingAs::~ActingAs() {
  if (changed_) {
    give_back();
  }
}

void ActingAs::give_back() const noexcept {
  set_file_user(::geteuid(), ::getegid());
  set_groups(own_groups_);
}

bool become(const User& user) noexcept {
  errno = EPERM;  // of the check that sets none
  return user.is_own() ||
         (set_groups(user.groups) && ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
          ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0 && !has_rights_of_root() &&
          ::chdir("/") == 0);
}

}  // namespace acc::launcher::spawn
