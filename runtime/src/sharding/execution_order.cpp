#include "sharding/execution_order.hpp"

namespace acc::sharding {

// `uses_[0, position_)` is what this iteration has done. While `follows_`, the rest of `uses_` is
// what the last iteration did next; otherwise the rest is cut off and recorded again.
void ExecutionOrder::use(int unit) {
  follows_ = follows_ && position_ < uses_.size() && uses_[position_] == unit;
  if (!follows_) {
    uses_.resize(position_);
    uses_.push_back(unit);
  }
  ++position_;
}

void ExecutionOrder::end_iteration() {
  if (position_ == 0) {
    return;
  }
  uses_.resize(position_);  // this iteration may have been shorter than the recorded one
  position_ = 0;
  follows_ = true;
}

std::span<const int> ExecutionOrder::ahead() const noexcept {
  return follows_ ? std::span(uses_).subspan(position_) : std::span<const int>{};
}

}  // namespace acc::sharding
