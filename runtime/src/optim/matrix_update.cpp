// SPDX-License-Identifier: Apache-2.0
#include "optim/matrix_update.hpp"

#include "acc/base/error.hpp"
#include "kernels/orthogonalize.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace acc::optim {
namespace {

/// Elements of a window, with all shards, unless a number per rank is given: owners are balanced
/// within a window, and its memory is limited. A larger flat parameter is alone in one.
constexpr std::int64_t kWindowNumel = std::int64_t{1} << 25;

}  // namespace

std::vector<int> assign_owners(std::span<const std::int64_t> costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners(costs.size());
  for (const std::size_t task : order) {
    const auto least = std::ranges::min_element(sums);
    *least += costs[task];
    owners[task] = static_cast<int>(least - sums.begin());
  }
  return owners;
}

MatrixUpdate::MatrixUpdate(const sharding::Context& context, sharding::Counters& counters,
                           std::vector<Flat> flats, int iterations, float eps,
                           std::int64_t tile_numel)
    : context_(context),
      counters_(counters),
      flats_(std::move(flats)),
      iterations_(iterations),
      eps_(eps),
      shards_(context.groups.shard->size()),
      in_place_(!context.groups.replicate &&
                (shards_ == 1 || context.groups.shard->shares_gathered_memory())) {
  if (context_.updater->kind() != settings::Device::cpu) {
    throw Error(Errc::not_supported,
                "an optimizer that needs whole matrices runs on the CPU in this version of "
                "libacc_runtime: offload the optimizer to the CPU");
  }
  plan_windows(iterations, tile_numel);
  allocate();
}

void MatrixUpdate::plan_windows(int iterations, std::int64_t tile_numel) {
  const std::int64_t limit = tile_numel > 0 ? tile_numel * shards_ : kWindowNumel;
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    const std::int64_t size = flats_[i].flat->owned().numel * shards_;
    if (windows_.empty() || numel + size > limit) {
      windows_.emplace_back();
      numel = 0;
    }
    windows_.back().push_back({i, numel, {}});
    numel += size;
    window_numel_ = std::max(window_numel_, numel);
  }
  for (Window& window : windows_) {
    std::vector<std::int64_t> costs;
    for (const Place& place : window) {
      for (const Matrix& each : flats_[place.flat].matrices) {
        costs.push_back(kernels::orthogonalize_cost(each.rows, each.columns, iterations));
      }
    }
    const std::vector<int> owners = assign_owners(costs, context_.groups.world->size());
    auto next = owners.begin();
    for (Place& place : window) {
      const auto& flat = flats_[place.flat];
      const auto end = next + std::ssize(flat.matrices);
      place.owners.assign(next, end);
      if (flat.flat->ignored()) {  // each rank has its own
        std::ranges::fill(place.owners, context_.groups.world->rank());
      }
      next = end;
    }
  }
}

// With several windows, a rank may write the next one while its peers read the last: two buffers.
// The norm of the gradients, which each step waits for, separates two steps.
void MatrixUpdate::allocate() {
  auto& group = *context_.groups.shard;
  const auto nbytes = static_cast<std::size_t>(window_numel_) * sizeof(float);
  for (std::size_t i = 0; i < std::min<std::size_t>(windows_.size(), 2); ++i) {
    buffers_.push_back({group.allocate_gathered(nbytes),
                        in_place_ ? nullptr : group.allocate_contribution(nbytes)});
  }
  if (context_.offload_optimizer()) {
    std::int64_t largest = 1;
    for (const Flat& flat : flats_) {
      for (const Matrix& each : flat.matrices) {
        largest = std::max(largest, each.rows * each.columns);
      }
    }
    own_ = context_.allocate_working(window_numel_ / shards_, "directions of matrices");
    matrix_ = context_.allocate_working(largest, "directions of matrices");
  }
}

/// In the order of `allocate`.
void MatrixUpdate::renew() {
  auto& group = *context_.groups.shard;
  for (Buffers& each : buffers_) {
    each.directions = group.renew(each.directions);
    if (each.results) {
      each.results = group.renew(each.results);
    }
  }
}

std::int64_t MatrixUpdate::nbytes() const noexcept {
  std::size_t total = (own_ ? own_->nbytes() : 0) + (matrix_ ? matrix_->nbytes() : 0);
  for (const Buffers& each : buffers_) {
    total += each.directions->nbytes() / static_cast<std::size_t>(each.directions->sharers()) +
             (each.results ? each.results->nbytes() : 0);
  }
  return static_cast<std::int64_t>(total);
}

void MatrixUpdate::run(const Step& step) {
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    run_window(windows_[i], buffers_[i % buffers_.size()], step);
  }
}

std::int64_t MatrixUpdate::shard_numel(const Place& place) const {
  return flats_[place.flat].flat->owned().numel;
}

std::int64_t MatrixUpdate::own_offset(const Place& place) const {
  return place.offset + shard_numel(place) * context_.groups.shard->rank();
}

std::int64_t MatrixUpdate::whole_offset(const Place& place) const {
  return flats_[place.flat].flat->ignored() ? own_offset(place) : place.offset;
}

bool MatrixUpdate::is_gathered(const Place& place) const {
  return shards_ > 1 && !flats_[place.flat].flat->ignored();
}

void MatrixUpdate::run_window(const Window& window, Buffers& buffers, const Step& step) {
  const trace::Scope scope(context_.tracer.get(), "optimizer", "update", "matrices");
  auto& device = *context_.device;
  auto& shard = *context_.groups.shard;
  auto* const directions = buffers.directions->as<float>();
  auto* const results = buffers.results ? buffers.results->as<float>() : directions;
  const bool offloads = context_.offload_optimizer();
  const auto nbytes_of_shard = [this](const Place& place) {
    return static_cast<std::size_t>(shard_numel(place)) * sizeof(float);
  };
  std::vector<collectives::WorkPtr> works;
  for (const Place& place : window) {
    float* const own = directions + own_offset(place);
    float* const to = offloads ? own_->as<float>() : own;
    compute_direction(place, to, step);
    if (offloads) {
      device.copy(own, to, nbytes_of_shard(place), device.compute());
      device.record(device.compute())->synchronize();  // `to` is used again
    }
    if (is_gathered(place)) {
      works.push_back(shard.all_gather(own, directions + place.offset, nbytes_of_shard(place)));
      const std::int64_t numel = flats_[place.flat].flat->layout().numel;
      counters_.traffic.gathered_elements += numel;
      counters_.traffic.gathered_elements_moved += shard.shares_gathered_memory() ? 0 : numel;
      counters_.traffic.gather_calls += 1;
    }
  }
  if (buffers.results) {
    device.zero(results, buffers.results->nbytes(), device.compute());
  }
  for (const auto& work : works) {
    work->wait();
  }
  for (const Place& place : window) {
    orthogonalize(place, directions + whole_offset(place), results + whole_offset(place));
  }
  send_back(window, results);
  for (const Place& place : window) {
    const float* own = results + own_offset(place);
    if (offloads) {
      device.copy(own_->data(), own, nbytes_of_shard(place), device.compute());
      device.record(device.compute())->synchronize();
      own = own_->as<float>();
    }
    apply(place, own, step);
  }
  shard.release_gathered(buffers.directions);
}

void MatrixUpdate::send_back(const Window& window, float* results) {
  auto& shard = *context_.groups.shard;
  if (in_place_) {
    if (shards_ > 1) {
      shard.barrier()->wait();
    }
    return;
  }
  std::vector<collectives::WorkPtr> works;
  for (const Place& place : window) {
    if (is_gathered(place)) {
      works.push_back(shard.reduce_scatter(results + place.offset, results + own_offset(place),
                                           static_cast<std::size_t>(shard_numel(place)),
                                           DType::float32, {}));
      counters_.traffic.reduced_elements += flats_[place.flat].flat->layout().numel;
      counters_.traffic.reduce_calls += 1;
    }
  }
  for (const auto& work : works) {
    work->wait_released();
  }
  works.clear();
  for (const Place& place : window) {
    if (context_.groups.replicate && !flats_[place.flat].flat->ignored()) {
      works.push_back(context_.groups.replicate->all_reduce(
          results + own_offset(place), static_cast<std::size_t>(shard_numel(place)), DType::float32,
          1.0F));
      counters_.traffic.all_reduced_elements +=
          is_gathered(place) ? shard_numel(place) : flats_[place.flat].flat->layout().numel;
      counters_.traffic.all_reduce_calls += 1;
    }
  }
  for (const auto& work : works) {
    work->wait_released();
  }
}

void MatrixUpdate::compute_direction(const Place& place, float* to, const Step& step) {
  const Flat& flat = flats_[place.flat];
  device::UpdateArrays arrays = flat.flat->update_arrays(step.number);
  arrays.weights = to;
  arrays.weight_dtype = DType::float32;
  arrays.rounded = nullptr;
  arrays.stochastic = false;
  arrays.first = flat.momentum;
  arrays.clip = step.clip;
  device::Device& updater = *context_.updater;
  for (const Matrix& each : flat.matrices) {
    updater.update(step.direction, arrays, range_of(flat, each), updater.compute());
  }
}

void MatrixUpdate::orthogonalize(const Place& place, float* directions, float* results) {
  const Flat& flat = flats_[place.flat];
  device::Device& device = *context_.device;
  for (std::size_t i = 0; i < flat.matrices.size(); ++i) {
    if (place.owners[i] != context_.groups.world->rank()) {
      continue;
    }
    const Matrix& each = flat.matrices[i];
    const std::int64_t at = flat.flat->layout().offsets[each.index];
    const auto nbytes = static_cast<std::size_t>(each.rows * each.columns) * sizeof(float);
    float* matrix = directions + at;
    if (context_.offload_optimizer()) {
      device.copy(matrix_->data(), matrix, nbytes, device.compute());
      device.record(device.compute())->synchronize();
      matrix = matrix_->as<float>();
    }
    device::Device& updater = *context_.updater;
    kernels::orthogonalize(
        matrix, static_cast<std::size_t>(each.rows), static_cast<std::size_t>(each.columns),
        iterations_, eps_, updater.threads(),
        [&](std::size_t parts, const auto& task) { updater.run_parts(parts, task); });
    if (matrix != results + at) {
      device.copy(results + at, matrix, nbytes, device.compute());
      device.record(device.compute())->synchronize();
    }
  }
}

void MatrixUpdate::apply(const Place& place, const float* results, const Step& step) {
  const Flat& flat = flats_[place.flat];
  device::UpdateArrays arrays = flat.flat->update_arrays(step.number);
  arrays.grads = results;
  device::Device& updater = *context_.updater;
  for (const Matrix& each : flat.matrices) {
    updater.update(step.apply(each), arrays, range_of(flat, each), updater.compute());
  }
}

std::vector<device::UpdateRange> MatrixUpdate::range_of(const Flat& flat,
                                                        const Matrix& matrix) const {
  const sharding::Overlap part = overlap(flat.flat->layout(), matrix.index, flat.flat->owned());
  return {{part.in_shard, part.numel, flat.flat->parameters()[matrix.index].weight_decay}};
}

}  // namespace acc::optim
