// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

// Objects of a process that a child made by fork(2) must not use. The child has a copy of their
// memory and of their descriptors: with them it would take part in the job in place of its parent.

namespace acc {

/// Remembers the process in which it was made.
class OwnProcess {
 public:
  OwnProcess() noexcept;
  /// False in a child. Compares a number: no system call.
  [[nodiscard]] bool is_current() const noexcept { return fork_number_ == forks_; }
  /// Throws Error(invalid_argument) in a child. what: the object, such as "the runtime of rank 1".
  void check(const std::string& what) const {
    if (!is_current()) {
      refuse(what);
    }
  }

 private:
  friend class ForkHook;
  [[noreturn]] void refuse(const std::string& what) const;

  static std::uint32_t forks_;  ///< number of forks between the first process and this one
  std::uint32_t fork_number_;
  pid_t pid_;
};

/// Calls a function in each child made by fork(2), before fork returns there. The function may only
/// make system calls, such as close(2): other threads of the parent may have held locks.
class ForkHook {
 public:
  explicit ForkHook(std::function<void()> in_child);
  ~ForkHook();
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;

 private:
  friend class OwnProcess;
  static void register_once();
  static void enter_child();

  std::function<void()> in_child_;
};

/// Makes an object whose destructor does not run in a child.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_own(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            [owner = OwnProcess()](T* object) {
                              if (owner.is_current()) {
                                delete object;
                              }
                            });
}

}  // namespace acc
