// SPDX-License-Identifier: Apache-2.0
#include "state_dict/saved_arrays.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

namespace acc::state_dict {

namespace {

std::vector<std::size_t> all_of(const std::vector<sharding::ParameterRecord>& records) {
  std::vector<std::size_t> all(records.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

}  // namespace

namespace {

FlatArray array_of(detail::ModelState& model, const sharding::FlatParameter& flat, std::string kind,
                   void* values, DType dtype, std::vector<std::size_t> parameters) {
  return {.kind = std::move(kind),
          .values = values,
          .dtype = dtype,
          .layout = &flat.layout(),
          .records = &flat.parameters(),
          .parameters = std::move(parameters),
          .owned = flat.owned(),
          .shards = shards_of(model, flat),
          .ignored = flat.ignored()};
}

}  // namespace

// Saves the master weights, which the optimizer updates, not the rounded copies of them.
std::vector<FlatArray> weight_arrays(detail::ModelState& model) {
  std::vector<FlatArray> arrays;
  for (sharding::FlatParameter* flat : model.flats()) {
    arrays.push_back(array_of(model, *flat, "param", flat->master(), flat->stored(),
                              all_of(flat->parameters())));
  }
  return arrays;
}

std::vector<FlatArray> moment_arrays(detail::ModelState& model, detail::OptimizerState& optimizer) {
  std::vector<FlatArray> arrays;
  for (auto& state : optimizer.flats()) {
    for (const auto& moment : state.moments) {
      arrays.push_back(array_of(model, *state.flat, moment.kind, moment.values->data(),
                                moment.dtype, moment.parameters));
      arrays.back().layout = &moment.layout;
      arrays.back().owned = moment.owned;
    }
    for (std::size_t i = 0; state.packed && i < state.packed->states().size(); ++i) {
      arrays.push_back(array_of(model, *state.flat, state.packed->states()[i].kind, nullptr,
                                DType::float32, all_of(state.flat->parameters())));
      arrays.back().packed = state.packed.get();
      arrays.back().state = i;
    }
  }
  if (optimizer.owned() != nullptr) {
    for (const optim::OwnedArray& each : *optimizer.owned()) {
      arrays.push_back({.kind = each.kind,
                        .values = each.values->data(),
                        .dtype = DType::float32,
                        .layout = &each.layout,
                        .records = &each.records,
                        .parameters = all_of(each.records),
                        .owned = each.owned,
                        .shards = each.shards,
                        .ignored = each.records.front().ignored});
    }
  }
  return arrays;
}

// The program may have memory of the weights, never of moments. The guard hides weights from every
// thread, and values in files are read by the device.
HeldPtr hold(detail::ModelState& model, const FlatArray& array) {
  const auto owned = array.owned;
  if (array.packed != nullptr) {
    return std::make_shared<HeldValues>(
        [array, owned](std::int64_t begin, std::int64_t numel, std::byte* to) {
          array.packed->read(array.state, begin - owned.offset, numel,
                             reinterpret_cast<float*>(to));
        },
        owned.offset, owned.numel, nbytes_of(array.dtype));
  }
  const bool exposed = (array.kind == "param" &&
                        (model.late_copies.weights_are_exposed() || model.context().guard->on())) ||
                       model.context().in_file(array.values);
  return std::make_shared<HeldValues>(
      *model.context().updater, array.values, owned.offset, owned.numel, nbytes_of(array.dtype),
      exposed ? HeldValues::Changes::at_any_time : HeldValues::Changes::announced);
}

HeldPtr hold(detail::ModelState& model, const acc::model::BufferRecord& buffer) {
  return std::make_shared<HeldValues>(*model.context().device, buffer.values->data(), 0,
                                      buffer.numel, nbytes_of(buffer.dtype),
                                      HeldValues::Changes::at_any_time);
}

// Ignored parameters are whole on every rank. Without a sharded optimizer every rank has all master
// weights, whatever the strategy gathers.
int shards_of(detail::ModelState& model, const sharding::FlatParameter& flat) {
  if (flat.ignored() || !model.context().on.shard_optimizer) {
    return 1;
  }
  return model.context().groups.plan.shard_size();
}

// Both sides have the names of torch.
Dtype stored_dtype(DType dtype, const std::string& tensor) {
  const std::optional<Dtype> found = dtype_of_torch(to_string(dtype));
  if (!found) {
    throw Error(Errc::not_supported,
                fmt::format("files cannot hold {} of dtype {}", tensor, to_string(dtype)));
  }
  return *found;
}

std::optional<DType> dtype_in_memory(Dtype stored) noexcept {
  const auto* const found = std::ranges::find(kDTypeNames, torch_name(stored));
  return found == std::end(kDTypeNames)
             ? std::nullopt
             : std::optional(static_cast<DType>(found - std::begin(kDTypeNames)));
}

std::vector<StoredGroup> stored_groups(const detail::OptimizerState& optimizer) {
  std::vector<StoredGroup> groups;
  for (const auto& record : optimizer.group_records()) {
    groups.push_back({record.hyper_parameters, record.parameters});
  }
  return groups;
}

std::string seed_name(int index) {
  return kSeedPrefix + std::to_string(index);
}

bool is_rank_zero(detail::ModelState& model) {
  return model.context().groups.world->rank() == 0;
}

ShowProgress shows_progress(detail::ModelState& model) {
  return is_rank_zero(model) ? ShowProgress::yes : ShowProgress::no;
}

std::uint64_t owned_nbytes(const std::vector<FlatArray>& arrays) {
  std::uint64_t nbytes = 0;
  for (const FlatArray& array : arrays) {
    nbytes += static_cast<std::uint64_t>(array.owned.numel) * nbytes_of(array.dtype);
  }
  return nbytes;
}

std::uint64_t full_nbytes(const std::vector<FlatArray>& arrays) {
  std::uint64_t nbytes = 0;
  for (const FlatArray& array : arrays) {
    nbytes += static_cast<std::uint64_t>(array.layout->padded_numel) * nbytes_of(array.dtype);
  }
  return nbytes;
}

}  // namespace acc::state_dict
