#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace acc::sharding {

/// The execution order: the sequence in which an iteration uses its units. It is recorded in the
/// first iteration and then followed (like DeepSpeed's parameter coordinator). If a use differs
/// from the recorded one, the record is not followed for the rest of that iteration, which is
/// recorded instead.
class ExecutionOrder {
 public:
  void use(int unit);
  void end_iteration();
  /// Remaining uses of this iteration according to the record; empty while recording.
  [[nodiscard]] std::span<const int> ahead() const noexcept;

 private:
  std::vector<int> uses_;
  std::size_t position_ = 0;  ///< number of uses in this iteration so far
  bool follows_ = false;      ///< `uses_` is a whole iteration, and this one agrees with it so far
};

}  // namespace acc::sharding
