#pragma once

#include <chrono>

namespace acc::launcher {

/// How long to wait before each restart. The first comes at once; while attempts fail within
/// `kHealthy` of their start, the next ones wait 1 s, 2 s, 4 s, … up to a longest pause, so that a
/// program that cannot work does not keep the machines busy with failing.
class RestartPauses {
 public:
  static constexpr std::chrono::seconds kHealthy{60};

  explicit RestartPauses(std::chrono::seconds longest) : longest_(longest) {}

  /// Before the restart that follows on an attempt which ran so long until its first failure.
  std::chrono::milliseconds next(std::chrono::milliseconds ran_for);

 private:
  std::chrono::milliseconds longest_;
  std::chrono::milliseconds pause_{0};
};

}  // namespace acc::launcher
