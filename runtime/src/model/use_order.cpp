// SPDX-License-Identifier: Apache-2.0
#include "model/use_order.hpp"

#include <fmt/format.h>

#include <array>

namespace acc::model {
namespace {

using collectives::ProcessGroup;

constexpr std::int64_t kNumEvents = 3;

/// Smallest and largest value of all ranks. Collective.
struct Extremes {
  double least;
  double most;
};
Extremes extremes(ProcessGroup& world, double value) {
  std::array<double, 2> found = {-value, value};
  world.all_reduce(found, ReduceOp::max)->wait();
  return {-found[0], found[1]};
}

std::string text_of(std::int64_t event, const std::function<std::string(int)>& name_of) {
  if (event == 0) {
    return "does nothing more";
  }
  constexpr std::array<const char*, kNumEvents> kVerbs = {
      "begins the forward", "begins the backward", "ends the backward"};
  return fmt::format("{} of unit '{}'", kVerbs[static_cast<std::size_t>((event - 1) % kNumEvents)],
                     name_of(static_cast<int>((event - 1) / kNumEvents)));
}

}  // namespace

std::vector<bool> alike(ProcessGroup& world, std::initializer_list<double> values) {
  std::vector<double> bounds;
  for (const double value : values) {
    bounds.insert(bounds.end(), {-value, value});
  }
  world.all_reduce(bounds, ReduceOp::max)->wait();
  std::vector<bool> found;
  for (std::size_t i = 0; i < bounds.size(); i += 2) {
    found.push_back(-bounds[i] == bounds[i + 1]);
  }
  return found;
}

void UseOrder::add(int unit, Event event) {
  events_.push_back(unit * kNumEvents + static_cast<std::int64_t>(event) + 1);
  add_to_hash(static_cast<std::uint64_t>(events_.back()));
}

void UseOrder::add_to_hash(std::uint64_t value) noexcept {
  for (; value != 0; value >>= 8) {
    hash_ = (hash_ ^ static_cast<std::uint32_t>(value & 0xff)) * 16777619U;  // FNV-1a
  }
}

/// Events before it are not kept, because a program may drop gradients without ever making a step.
void UseOrder::drop() noexcept {
  events_.clear();
  add_to_hash(~std::uint64_t{0});
}

void UseOrder::clear() noexcept {
  events_.clear();
  hash_ = 0;
}

std::string UseOrder::difference(ProcessGroup& world,
                                 const std::function<std::string(int)>& name_of) const {
  const auto longest =
      static_cast<std::size_t>(extremes(world, static_cast<double>(events_.size())).most);
  for (std::size_t i = 0; i < longest; ++i) {
    const auto own = static_cast<double>(at(i));
    const Extremes events = extremes(world, own);
    if (events.least != events.most) {
      // The highest rank of each of the two groups of ranks.
      std::array<double, 2> ranks = {own == events.least ? world.rank() : -1.0,
                                     own == events.most ? world.rank() : -1.0};
      world.all_reduce(ranks, ReduceOp::max)->wait();
      return fmt::format(
          "the ranks used the units in different orders since the last step: as number {}, rank {} "
          "{}, and rank {} {}",
          i + 1, ranks[0], text_of(static_cast<std::int64_t>(events.least), name_of), ranks[1],
          text_of(static_cast<std::int64_t>(events.most), name_of));
    }
  }
  return "the ranks used the units in different orders since the last step, or dropped gradients "
         "(zero_grad) at different places";
}

}  // namespace acc::model
