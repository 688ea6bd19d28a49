// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_meter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace acc::optim {

using sharding::FlatParameter;

GradientMeter::GradientMeter(const sharding::Context& context, std::vector<FlatParameter*> flats)
    : context_(context),
      flats_(std::move(flats)),
      squares_(context.updater->allocate(2 * sizeof(double), "gradient norm")),
      figures_(context.updater->allocate(sizeof(kernels::ClipFigures), "gradient norm")),
      reader_(*context.updater),
      squares_here_(context.updater->allocate_host(2 * sizeof(double), "gradient norm")) {
  any_ignored_ = std::any_of(flats_.begin(), flats_.end(),
                             [](const FlatParameter* flat) { return flat->ignored(); });
}

// The sum of squares is taken in an order that depends only on the layout: within a flat parameter
// by the kernel, over flat parameters in their order, over ranks in rank order. So two runs of the
// same layout clip by exactly the same factor.
void GradientMeter::measure() {
  device::Device& updater = *context_.updater;
  updater.zero(squares_->data(), squares_->nbytes(), updater.compute());
  for (FlatParameter* flat : flats_) {
    updater.add_squared_norm(flat->gradient()->reduced(),
                             static_cast<std::size_t>(flat->owned().numel),
                             squares_->as<double>() + (flat->ignored() ? 1 : 0), updater.compute());
  }
  // Summed over the shard group only: replicas hold the same shards. With NO_SHARD that group is
  // this rank alone, whose gradients are whole.
  const trace::Scope scope(context_.tracer.get(), "wait", "for", "the norm of all ranks");
  sums_.clear();
  sum(*context_.groups.shard, squares_->as<double>());
  // Gradients of ignored modules differ between ranks. The mean of their squares gives all ranks
  // the same norm, so that they clip and skip alike.
  if (any_ignored_) {
    sum(*context_.groups.world, squares_->as<double>() + 1);
  }
}

/// With an offloaded optimizer the squares are in host memory, and the group's own is a GPU's.
void GradientMeter::sum(collectives::ProcessGroup& group, double* squares) {
  sums_.push_back(context_.offload_optimizer()
                      ? group.all_reduce(std::span(squares, 1), ReduceOp::sum)
                      : group.sum(squares, 1));
  sums_.back()->wait();
}

double GradientMeter::norm() {
  device::Device& updater = *context_.updater;
  updater.copy(squares_here_->data(), squares_->data(), squares_->nbytes(), updater.compute());
  updater.record(updater.compute())->synchronize();
  for (const collectives::WorkPtr& each : sums_) {
    each->wait();  // throws if the sum was aborted
  }
  const auto* here = squares_here_->as<double>();
  return std::sqrt(here[0] + here[1] / context_.groups.world->size());
}

sharding::LateDoubles GradientMeter::clip_to_norm(double max_norm) {
  device::Device& updater = *context_.updater;
  auto* const figures = figures_->as<kernels::ClipFigures>();
  updater.clip_to_norm(squares_->as<double>(), context_.groups.world->size(), max_norm, figures,
                       updater.compute());
  return reader_.read(&figures->norm, 2, sums_);
}

const float* GradientMeter::clip_factor() const noexcept {
  return &figures_->as<kernels::ClipFigures>()->factor;
}

void GradientMeter::clamp(double scale, double limit) {
  device::Device& updater = *context_.updater;
  for (FlatParameter* flat : flats_) {
    updater.scale_clamped(flat->gradient()->reduced(),
                          static_cast<std::size_t>(flat->owned().numel), static_cast<float>(scale),
                          static_cast<float>(limit), updater.compute());
  }
}

// Each rank knows the first micro-step in which its own gradient was not finite, by a number that
// counts alike on all ranks. The smallest number over ranks is the cause; later ones usually follow
// from it. If no rank has one, the sum over the ranks overflowed.
Error GradientMeter::non_finite(std::int64_t step) {
  const std::vector<std::int64_t> firsts = first_of_each_rank();
  std::int64_t first = -1;
  for (const std::int64_t each : firsts) {
    first = each >= 0 && (first < 0 || each < first) ? each : first;
  }
  if (first < 0) {
    return {Errc::collective,
            fmt::format("step {}: a gradient is not finite: the sum over the ranks of unit '{}' is "
                        "not finite (overflow), but every rank's own gradient is",
                        step, unit_of_sum())};
  }
  std::vector<int> ranks;
  std::vector<int> later;
  for (std::size_t rank = 0; rank < firsts.size(); ++rank) {
    if (firsts[rank] >= 0) {
      (firsts[rank] == first ? ranks : later).push_back(static_cast<int>(rank));
    }
  }
  return {Errc::collective,
          fmt::format(
              "step {}: a gradient is not finite, first in {} on rank {}{}", step, where(first),
              fmt::join(ranks, ", "),
              later.empty() ? "" : fmt::format(", later also on rank {}", fmt::join(later, ", "))),
          ranks.front()};
}

/// Returns for each rank the number (`Counters::gradients_closed`) of the first micro-step with a
/// non-finite gradient; -1 for a rank whose gradients were finite. Gathers by all_reduce with the
/// maximum, in pieces, because a group combines at most 8 doubles in host memory at once.
std::vector<std::int64_t> GradientMeter::first_of_each_rank() {
  constexpr std::size_t kAtOnce = 8;
  std::int64_t here = -1;
  for (const FlatParameter* flat : flats_) {
    if (const auto found = flat->gradient()->watch()->first_non_finite()) {
      here = here < 0 ? *found : std::min(here, *found);
    }
  }
  auto& world = *context_.groups.world;
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto own = static_cast<std::size_t>(world.rank());
  std::vector<double> all(ranks, -1.0);
  all[own] = static_cast<double>(here);
  for (std::size_t begin = 0; begin < ranks; begin += kAtOnce) {
    const std::span<double> part(all.data() + begin, std::min(kAtOnce, ranks - begin));
    // wait_released: a rank throws and aborts its groups only after all ranks have the result.
    world.all_reduce(part, ReduceOp::max)->wait_released();
  }
  std::vector<std::int64_t> result(ranks);
  std::transform(all.begin(), all.end(), result.begin(),
                 [](double each) { return static_cast<std::int64_t>(each); });
  return result;
}

/// Returns the unit and the micro-step of a number. Any rank can tell, because all ranks end the
/// same micro-steps in the same order.
std::string GradientMeter::where(std::int64_t closed) const {
  for (const FlatParameter* flat : flats_) {
    const auto& all = flat->gradient()->watch()->closed();
    const auto found = std::ranges::find(all, closed, &sharding::GradientWatch::Closed::number);
    if (found != all.end()) {
      return fmt::format("unit '{}' in micro-step {}", flat->unit_name(), found->micro_step);
    }
  }
  return "an unknown unit";
}

/// Returns the unit with the first reduced gradient that is not finite. A rank sees only its
/// shards, so the ranks agree on the smallest index, as the maximum of "flat parameters from that
/// one on".
std::string GradientMeter::unit_of_sum() {
  device::Device& updater = *context_.updater;
  std::array<double, 1> before_end = {0.0};  // flat parameters from the first non-finite one on
  for (std::size_t i = 0; i < flats_.size() && before_end[0] == 0.0; ++i) {
    updater.zero(squares_->data(), sizeof(double), updater.compute());
    updater.add_squared_norm(flats_[i]->gradient()->reduced(),
                             static_cast<std::size_t>(flats_[i]->owned().numel),
                             squares_->as<double>(), updater.compute());
    updater.copy(squares_here_->data(), squares_->data(), sizeof(double), updater.compute());
    updater.record(updater.compute())->synchronize();
    if (!std::isfinite(*squares_here_->as<double>())) {
      before_end[0] = static_cast<double>(flats_.size() - i);
    }
  }
  context_.groups.world->all_reduce(before_end, ReduceOp::max)->wait_released();
  const auto index = flats_.size() - static_cast<std::size_t>(before_end[0]);
  return index < flats_.size() ? flats_[index]->unit_name() : "?";
}

}  // namespace acc::optim
