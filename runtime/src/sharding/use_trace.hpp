#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace acc::sharding {

/// In which order an iteration uses its units: recorded in the first one, then followed
/// (DeepSpeed's parameter coordinator). A use that is not the recorded one ends the following for
/// the rest of the iteration; what it does instead is the new record.
class UseTrace {
 public:
  void use(int unit);
  void end_iteration();
  /// The uses that the iteration still has before it; none while it is being recorded.
  [[nodiscard]] std::span<const int> ahead() const noexcept;

 private:
  std::vector<int> uses_;
  std::size_t position_ = 0;  ///< uses of this iteration so far
  bool follows_ = false;      ///< `uses_` is a whole iteration, and this one has kept to it so far
};

}  // namespace acc::sharding
