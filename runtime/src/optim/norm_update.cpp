// SPDX-License-Identifier: Apache-2.0
#include "optim/norm_update.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace acc::optim {

NormUpdate::NormUpdate(const sharding::Context& context, std::vector<Flat> flats)
    : context_(context), flats_(std::move(flats)) {
  std::int64_t numel = 1;
  std::size_t parameters = 1;
  for (const Flat& each : flats_) {
    numel = std::max(numel, each.flat->owned().numel);
    parameters = std::max(parameters, each.flat->parameters().size());
  }
  direction_ = context_.allocate_working(numel, "direction of the optimizer");
  const std::size_t nbytes = 2 * parameters * sizeof(double);
  squares_ = context_.updater->allocate(nbytes, "norms of parameters");
  squares_here_ = context_.updater->allocate_host(nbytes, "norms of parameters");
}

void NormUpdate::run(std::size_t index, const Step& step) {
  const Flat& flat = flats_[index];
  device::Device& updater = *context_.updater;
  device::Stream& stream = updater.compute();
  auto* const direction = direction_->as<float>();
  device::UpdateArrays arrays = flat.flat->update_arrays(step.number);
  updater.cast(arrays.weights, arrays.weight_dtype, direction, DType::float32,
               static_cast<std::size_t>(flat.flat->owned().numel), stream);
  device::UpdateArrays first = arrays;
  first.weights = direction;
  first.weight_dtype = DType::float32;
  first.rounded = nullptr;
  first.stochastic = false;
  first.first = flat.states[0];
  first.second = flat.states[1];
  first.clip = step.clip;
  updater.zero(squares_->data(), squares_->nbytes(), stream);
  const auto range_of = [&](std::size_t i) {
    const sharding::Overlap part = overlap(flat.flat->layout(), i, flat.flat->owned());
    return device::UpdateRange{part.in_shard, part.numel, flat.flat->parameters()[i].weight_decay};
  };
  for (std::size_t i = 0; i < flat.groups.size(); ++i) {
    const device::UpdateRange range = range_of(i);
    const auto add_square = [&](std::size_t to) {
      if (range.numel > 0) {
        updater.add_squared_norm(direction + range.begin, static_cast<std::size_t>(range.numel),
                                 squares_->as<double>() + to, stream);
      }
    };
    add_square(2 * i);
    updater.update(step.direction(flat.groups[i]), first, {&range, 1}, stream);
    add_square(2 * i + 1);
  }
  const std::vector<double> squares = squares_of_all(*flat.flat);
  arrays.grads = direction;
  for (std::size_t i = 0; i < flat.groups.size(); ++i) {
    const device::UpdateRange range = range_of(i);
    updater.update(
        step.apply(flat.groups[i], std::sqrt(squares[2 * i]), std::sqrt(squares[2 * i + 1])),
        arrays, {&range, 1}, stream);
  }
}

std::vector<double> NormUpdate::squares_of_all(const sharding::FlatParameter& flat) {
  device::Device& updater = *context_.updater;
  updater.copy(squares_here_->data(), squares_->data(), squares_->nbytes(), updater.compute());
  updater.record(updater.compute())->synchronize();
  const std::span<const double> own(squares_here_->as<double>(), 2 * flat.parameters().size());
  return flat.ignored() ? std::vector<double>(own.begin(), own.end())
                        : sharding::sum_over_shards(context_.groups, *context_.device, own);
}

}  // namespace acc::optim
