// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace acc::sharding {

struct GuardedRange;

/// Detects programs that write gathered weights, or use them outside of their scopes (ACC_CHECK=1,
/// --debug). With mprotect(2), memory that was given to the program is read-only inside a scope and
/// inaccessible afterwards, in this process only. A wrong access ends in SIGSEGV after a line on
/// stderr that names rank, parameter and unit. If the guard is off, each call returns at once.
///
/// memory: start of host memory that occupies whole pages, [nbytes]. It stays registered until
/// `release`.
class ViewGuard {
 public:
  /// The content of guarded memory, for the line on stderr.
  struct Contents {
    std::string unit;
    struct Part {
      std::size_t end;  ///< offset of the end, in elements
      std::string name;
    };
    std::vector<Part> parts;
  };

  explicit ViewGuard(bool on);
  ~ViewGuard() { release(); }
  ViewGuard(const ViewGuard&) = delete;
  ViewGuard& operator=(const ViewGuard&) = delete;

  [[nodiscard]] bool on() const noexcept { return on_; }
  /// Allows the program to read. width: bytes of one element; contents: lives until `release`;
  /// rank: for the line.
  void show(const void* memory, std::size_t nbytes, std::size_t width, const Contents& contents,
            int rank);
  /// Forbids every access to memory that was shown; does nothing for other memory.
  void hide(const void* memory);
  /// Allows the runtime to read and write.
  void open(const void* memory);
  /// Makes everything accessible, so that its owners can free it.
  void release() noexcept;

 private:
  bool on_;
  std::map<std::uintptr_t, GuardedRange*> shown_;  ///< by start address
};

}  // namespace acc::sharding
