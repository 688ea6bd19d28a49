// SPDX-License-Identifier: Apache-2.0
#include "optim/matrix_update.hpp"

#include "acc/base/error.hpp"
#include "acc/base/optimizer_sizes.hpp"
#include "sharding/host_array.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace acc::optim {

std::vector<int> assign_owners(std::span<const OwnedTask> tasks, int ranks) {
  std::vector<std::size_t> order(tasks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::pair(-tasks[a].cost, tasks[a].shape) < std::pair(-tasks[b].cost, tasks[b].shape);
  });
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners(tasks.size());
  for (const std::size_t task : order) {
    const auto least = std::ranges::min_element(sums);
    *least += tasks[task].cost;
    owners[task] = static_cast<int>(least - sums.begin());
  }
  return owners;
}

MatrixUpdate::MatrixUpdate(const sharding::Context& context, sharding::Counters& counters,
                           std::vector<Flat> flats, WholeRule rule, std::int64_t tile_numel)
    : context_(context),
      counters_(counters),
      flats_(std::move(flats)),
      rule_(std::move(rule)),
      shards_(context.groups.shard->size()),
      in_place_(!context.groups.replicate &&
                (shards_ == 1 || context.groups.shard->shares_gathered_memory())) {
  if (context_.updater->kind() != settings::Device::cpu) {
    throw Error(Errc::not_supported,
                "an optimizer that needs whole parameters runs on the CPU in this version of "
                "libacc_runtime: offload the optimizer to the CPU");
  }
  plan_windows(tile_numel);
  allocate();
  for (Window& window : windows_) {
    allocate_states(window, false);
    allocate_states(window, true);
  }
}

void MatrixUpdate::plan_windows(std::int64_t tile_numel) {
  const std::int64_t limit = tile_numel > 0 ? tile_numel * shards_ : kWindowNumel;
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    const std::int64_t size = flats_[i].flat->owned().numel * shards_;
    if (windows_.empty() || numel + size > limit) {
      windows_.emplace_back();
      numel = 0;
    }
    windows_.back().push_back({i, numel, {}, {}, {}});
    numel += size;
    window_numel_ = std::max(window_numel_, numel);
  }
  for (Window& window : windows_) {
    std::vector<OwnedTask> tasks;
    for (const Place& place : window) {
      for (const Matrix& each : flats_[place.flat].matrices) {
        tasks.push_back({rule_.cost(each.shape), each.shape});
      }
    }
    const std::vector<int> owners = assign_owners(tasks, context_.groups.world->size());
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
        largest = std::max(largest, flat.flat->layout().numels[each.index]);
      }
    }
    own_ = context_.allocate_working(window_numel_ / shards_, "directions of matrices");
    matrix_ = context_.allocate_working(largest, "directions of matrices");
  }
}

void MatrixUpdate::allocate_states(Window& window, bool ignored) {
  std::size_t states = 0;
  for (Place& place : window) {
    const std::vector<Matrix>& matrices = flats_[place.flat].matrices;
    states = matrices.front().states.size();
    place.slots.resize(matrices.size(), std::vector<Slot>(states));
  }
  for (std::size_t i = 0; i < states; ++i) {
    allocate_state(window, ignored, i);
  }
}

// A state is in the shard of the owner of its parameter, so that it is whole there. All shards have
// the size of the largest.
void MatrixUpdate::allocate_state(Window& window, bool ignored, std::size_t state) {
  const int rank = context_.groups.world->rank();
  OwnedArray array{.kind = {}, .layout = {}, .records = {}, .owned = {}, .values = nullptr};
  array.shards = ignored ? 1 : context_.groups.world->size();
  std::vector<std::int64_t> ends(static_cast<std::size_t>(array.shards));
  std::vector<int> owners;
  for (Place& place : window) {
    const Flat& flat = flats_[place.flat];
    for (std::size_t i = 0; flat.flat->ignored() == ignored && i < flat.matrices.size(); ++i) {
      const Rule::OwnedState& of = flat.matrices[i].states[state];
      if (!of.exists) {
        continue;
      }
      array.kind = of.key;
      sharding::ParameterRecord record = flat.flat->parameters()[flat.matrices[i].index];
      record.shape = of.shape;
      record.numel =
          std::accumulate(of.shape.begin(), of.shape.end(), std::int64_t{1}, std::multiplies<>());
      owners.push_back(ignored ? 0 : place.owners[i]);
      std::int64_t& end = ends[static_cast<std::size_t>(owners.back())];
      array.layout.offsets.push_back(end);
      array.layout.numels.push_back(record.numel);
      array.layout.numel += record.numel;
      if (ignored || owners.back() == rank) {
        place.slots[i][state] = {owned_.size(), end, record.numel};
      }
      end +=
          (record.numel + sharding::kAlignment - 1) / sharding::kAlignment * sharding::kAlignment;
      array.records.push_back(std::move(record));
    }
  }
  if (array.records.empty()) {
    return;
  }
  array.layout.shard_numel = std::max(*std::ranges::max_element(ends), sharding::kAlignment);
  array.layout.padded_numel = array.layout.shard_numel * array.shards;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    array.layout.offsets[i] += array.layout.shard_numel * owners[i];
  }
  array.owned = array.layout.shard(ignored ? 0 : rank);
  array.values = context_.allocate_state(array.owned.numel, "states of whole parameters");
  owned_.push_back(std::move(array));
}

/// In the order of `allocate`.
void MatrixUpdate::renew() {
  device::Device& updater = *context_.updater;
  for (const OwnedArray& each : owned_) {
    updater.zero(each.values->data(), each.values->nbytes(), updater.compute());
  }
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
  for (const OwnedArray& each : owned_) {
    total += context_.in_file(each.values->data()) ? 0 : each.values->nbytes();
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

void MatrixUpdate::run_window(Window& window, Buffers& buffers, const Step& step) {
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
  std::vector<double> squares;
  for (const Place& place : window) {
    float* const own = directions + own_offset(place);
    float* const to = offloads ? own_->as<float>() : own;
    compute_direction(place, to, step, squares);
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
  sum_squares(window, squares);
  for (const Place& place : window) {
    compute(place, directions + whole_offset(place), results + whole_offset(place), step);
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

void MatrixUpdate::compute_direction(const Place& place, float* to, const Step& step,
                                     std::vector<double>& squares) {
  const Flat& flat = flats_[place.flat];
  device::Device& updater = *context_.updater;
  if (rule_.needs_rms) {
    add_squares(place, to, squares);
  }
  if (flat.momentum == nullptr) {  // the direction is added to what is there
    updater.zero(to, static_cast<std::size_t>(shard_numel(place)) * sizeof(float),
                 updater.compute());
  }
  device::UpdateArrays arrays = flat.flat->update_arrays(step.number);
  arrays.weights = to;
  arrays.weight_dtype = DType::float32;
  arrays.rounded = nullptr;
  arrays.stochastic = false;
  arrays.first = flat.momentum;
  arrays.clip = step.clip;
  for (const Matrix& each : flat.matrices) {
    updater.update(step.direction, arrays, range_of(flat, each), updater.compute());
  }
}

void MatrixUpdate::add_squares(const Place& place, float* scratch, std::vector<double>& squares) {
  const Flat& flat = flats_[place.flat];
  device::Device& updater = *context_.updater;
  const device::UpdateArrays arrays = flat.flat->update_arrays(1);
  updater.cast(arrays.weights, arrays.weight_dtype, scratch, DType::float32,
               static_cast<std::size_t>(shard_numel(place)), updater.compute());
  for (const Matrix& each : flat.matrices) {
    const device::UpdateRange range = range_of(flat, each).front();
    squares.push_back(0.0);
    if (range.numel > 0) {
      updater.add_squared_norm(scratch + range.begin, static_cast<std::size_t>(range.numel),
                               &squares.back(), updater.compute());
    }
  }
}

// All ranks of the world take part, also in a window of which they ignore everything.
void MatrixUpdate::sum_squares(Window& window, std::span<const double> own) {
  if (!rule_.needs_rms) {
    return;
  }
  const auto sums = sharding::sum_over_shards(context_.groups, *context_.device, own);
  std::ptrdiff_t at = 0;
  for (Place& place : window) {
    const auto& flat = flats_[place.flat];
    const auto from = (flat.flat->ignored() ? own : std::span<const double>(sums)).begin() + at;
    place.squares.assign(from, from + std::ssize(flat.matrices));
    at += std::ssize(flat.matrices);
  }
}

void MatrixUpdate::compute(const Place& place, float* directions, float* results,
                           const Step& step) {
  const Flat& flat = flats_[place.flat];
  device::Device& device = *context_.device;
  for (std::size_t i = 0; i < flat.matrices.size(); ++i) {
    if (place.owners[i] != context_.groups.world->rank()) {
      continue;
    }
    const Matrix& each = flat.matrices[i];
    const std::int64_t at = flat.flat->layout().offsets[each.index];
    const auto nbytes =
        static_cast<std::size_t>(flat.flat->layout().numels[each.index]) * sizeof(float);
    float* matrix = directions + at;
    if (context_.offload_optimizer()) {
      device.copy(matrix_->data(), matrix, nbytes, device.compute());
      device.record(device.compute())->synchronize();
      matrix = matrix_->as<float>();
    }
    compute(place, i, matrix, step);
    if (matrix != results + at) {
      device.copy(results + at, matrix, nbytes, device.compute());
      device.record(device.compute())->synchronize();
    }
  }
}

void MatrixUpdate::compute(const Place& place, std::size_t matrix, float* values,
                           const Step& step) {
  const Flat& flat = flats_[place.flat];
  const Matrix& each = flat.matrices[matrix];
  using sharding::HostArray;
  std::vector<HostArray> arrays;  // of states in files, copies
  WholeParameter parameter{
      flat.flat->parameters()[each.index].name,
      each.shape,
      each.is_matrix,
      {values, static_cast<std::size_t>(flat.flat->layout().numels[each.index])},
      {}};
  for (const Slot& slot : place.slots[matrix]) {
    if (slot.numel == 0) {
      parameter.states.emplace_back();
      continue;
    }
    arrays.emplace_back(*context_.updater, owned_[slot.array].values->as<float>() + slot.begin,
                        DType::float32, slot.numel, HostArray::Copy::of_values);
    parameter.states.emplace_back(arrays.back().data(), static_cast<std::size_t>(slot.numel));
  }
  rule_.compute(parameter, step_of(place, matrix, step));
  std::ranges::for_each(arrays, &HostArray::write_back);
}

WholeStep MatrixUpdate::step_of(const Place& place, std::size_t matrix, const Step& step) const {
  const Flat& flat = flats_[place.flat];
  const Matrix& each = flat.matrices[matrix];
  WholeStep own = step.rates(each.group);
  own.number = step.number;
  if (!flat.flat->parameters()[each.index].weight_decay) {
    own.weight_decay = 0.0;
  }
  if (rule_.needs_rms) {
    own.rms = std::sqrt(place.squares[matrix] /
                        static_cast<double>(flat.flat->layout().numels[each.index]));
  }
  return own;
}

void MatrixUpdate::apply(const Place& place, const float* results, const Step& step) {
  const Flat& flat = flats_[place.flat];
  device::UpdateArrays arrays = flat.flat->update_arrays(step.number);
  arrays.grads = results;
  device::Device& updater = *context_.updater;
  for (std::size_t i = 0; i < flat.matrices.size(); ++i) {
    const Matrix& each = flat.matrices[i];
    updater.update(rule_.directed(each.shape, step_of(place, i, step)), arrays,
                   range_of(flat, each), updater.compute());
  }
}

std::vector<device::UpdateRange> MatrixUpdate::range_of(const Flat& flat,
                                                        const Matrix& matrix) const {
  const sharding::Overlap part = overlap(flat.flat->layout(), matrix.index, flat.flat->owned());
  return {{part.in_shard, part.numel, flat.flat->parameters()[matrix.index].weight_decay}};
}

}  // namespace acc::optim
