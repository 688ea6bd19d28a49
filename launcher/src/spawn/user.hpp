// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <vector>

namespace acc::launcher::spawn {

/// The user who runs a process, with the groups that decide what the process may open.
struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups{};

  /// True if this process has the same user.
  [[nodiscard]] bool is_own() const noexcept;
};

/// Gives this thread the rights of a user on files while it lives: root then opens, creates and
/// removes what that user could. It changes nothing for the own user.
class ActingAs {
 public:
  explicit ActingAs(const User& user) noexcept;
  ~ActingAs();
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;
  /// False if this process may not act as the user: only root may. Then nothing has changed.
  explicit operator bool() const noexcept { return acts_; }

 private:
  void give_back() const noexcept;

  std::vector<gid_t> own_groups_;
  bool acts_ = false;
  bool changed_ = false;
};

/// Makes this process, a new child, one of the user, in the folder "/". Changes nothing for the own
/// user. Allocates no memory. False and errno if this process may not do that.
bool become(const User& user) noexcept;

}  // namespace acc::launcher::spawn
