#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace acc::sharding {

struct GuardedRange;

/// Finds programs that write gathered weights, or use them outside of their scopes: what the
/// program was shown is read-only in a scope and inaccessible afterwards, in this process alone.
/// Such an access ends in SIGSEGV, which a line on stderr explains first. Off, each call returns at
/// once.
///
/// memory: start of host memory of its own pages, [nbytes]; the guard forgets it in `release`.
class ViewGuard {
 public:
  /// What lies in guarded memory, for the explanation.
  struct Contents {
    std::string unit;
    struct Part {
      std::size_t end;  ///< in elements
      std::string name;
    };
    std::vector<Part> parts;
  };

  ViewGuard(bool on, int rank);
  ~ViewGuard() { release(); }
  ViewGuard(const ViewGuard&) = delete;
  ViewGuard& operator=(const ViewGuard&) = delete;

  [[nodiscard]] bool on() const noexcept { return on_; }
  /// The program may read. width: bytes of an element; `contents` lives until `release`.
  void show(const void* memory, std::size_t nbytes, std::size_t width, const Contents& contents);
  /// Nobody may read or write what was shown.
  void hide(const void* memory);
  /// The runtime may read and write.
  void open(const void* memory);
  /// Makes everything accessible, so that its owners can free it.
  void release() noexcept;

 private:
  bool on_;
  int rank_;
  std::map<std::uintptr_t, GuardedRange*> shown_;  ///< by where it begins
};

}  // namespace acc::sharding
