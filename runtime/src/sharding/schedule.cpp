#include "sharding/schedule.hpp"

#include <algorithm>

namespace acc::sharding {
namespace {

bool holds(const std::vector<int>& order, int unit) {
  return std::find(order.begin(), order.end(), unit) != order.end();
}

}  // namespace

std::vector<int> Schedule::before_forward(int unit) {
  if (!holds(forward_, unit)) {
    forward_.push_back(unit);
    return {};
  }
  return rules_.forward ? next_of(forward_, unit) : std::vector<int>{};
}

void Schedule::after_forward(int unit) {
  if (!holds(backward_, unit)) {
    backward_.insert(backward_.begin(), unit);
  }
}

std::vector<int> Schedule::before_backward(int unit) {
  return rules_.backward == plugins::BackwardPrefetch::backward_pre ? next_of(backward_, unit)
                                                                    : std::vector<int>{};
}

std::vector<int> Schedule::after_backward(int unit) {
  return rules_.backward == plugins::BackwardPrefetch::backward_post ? next_of(backward_, unit)
                                                                     : std::vector<int>{};
}

/// One ahead, so two units are alive at most.
std::vector<int> Schedule::next_of(const Order& order, int unit) {
  const auto at = std::find(order.begin(), order.end(), unit);
  return at == order.end() || std::next(at) == order.end() ? std::vector<int>{}
                                                           : std::vector<int>{*std::next(at)};
}

}  // namespace acc::sharding
