// SPDX-License-Identifier: Apache-2.0
#include "state_dict/gathered.hpp"

#include <algorithm>
#include <utility>

namespace acc::state_dict {

using acc::model::BufferRecord;
using sharding::ParameterRecord;

std::vector<FullItem> weight_items(detail::ModelState& model,
                                   const std::vector<FlatArray>& arrays) {
  std::vector<FullItem> items;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    for (const std::size_t i : arrays[a].parameters) {
      const ParameterRecord& record = (*arrays[a].records)[i];
      for (std::string& name : record.names()) {
        items.push_back({std::move(name), arrays[a].kind, record.shape, arrays[a].dtype, a,
                         arrays[a].layout->offsets[i], nullptr});
      }
    }
  }
  for (const BufferRecord* buffer : model.buffers()) {
    for (std::string& name : buffer->names()) {
      items.push_back({std::move(name), "param", buffer->shape, buffer->dtype, 0, 0, buffer});
    }
  }
  return items;
}

std::vector<FullItem> moment_items(const std::vector<FlatArray>& arrays) {
  std::vector<FullItem> items;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    for (const std::size_t i : arrays[a].parameters) {
      const ParameterRecord& record = (*arrays[a].records)[i];
      items.push_back({record.name, arrays[a].kind, record.shape, arrays[a].dtype, a,
                       arrays[a].layout->offsets[i], nullptr});
    }
  }
  return items;
}

GatheredTensors::GatheredTensors(detail::ModelState& model, std::vector<FlatArray> arrays,
                                 std::vector<FullItem> items, Where where)
    : model_(model), arrays_(std::move(arrays)), items_(std::move(items)), where_(where) {}

bool GatheredTensors::wants() const {
  return where_.every_rank || is_rank_zero(model_);
}

// Items are visited in the same order on all ranks, and each array is gathered when the first item
// needs it. So every rank issues the same gathers, also a rank that skips items or has failed.
const std::byte* GatheredTensors::bring(std::size_t item) {
  for (; next_ <= item; ++next_) {
    const FullItem& each = items_[next_];
    if (each.buffer == nullptr && at_hand_ != each.array) {
      gather(each.array);
      at_hand_ = each.array;
      if (where_.meter != nullptr) {
        where_.meter->add(static_cast<std::uint64_t>(arrays_[each.array].layout->padded_numel) *
                          nbytes_of(arrays_[each.array].dtype));
      }
    }
  }
  const FullItem& wanted = items_[item];
  if (wanted.buffer != nullptr) {
    return wants() ? bring_buffer(*wanted.buffer) : nullptr;
  }
  return values_ == nullptr
             ? nullptr
             : values_ + static_cast<std::size_t>(wanted.offset) * nbytes_of(wanted.dtype);
}

void GatheredTensors::finish() {
  if (!items_.empty() && next_ < items_.size()) {
    bring(items_.size() - 1);
  }
}

// Gathers an array. Memory is needed for one full array at a time, on ranks that want values; the
// others free theirs when the gather is done.
void GatheredTensors::gather(std::size_t array) {
  const FlatArray& from = arrays_[array];
  const auto& context = model_.context();
  const std::size_t own_nbytes = static_cast<std::size_t>(from.owned.numel) * nbytes_of(from.dtype);
  const void* own = from.values;
  device::Device& device = *context.device;
  const bool is_whole = from.shards == 1;
  values_ = nullptr;
  device_memory_.reset();
  if (is_whole && !wants()) {
    return;
  }
  device::MemoryPtr unpacked;
  if (from.packed != nullptr) {
    unpacked = context.allocate_state(from.owned.numel, "gathered for a checkpoint");
    from.packed->read(from.state, 0, from.owned.numel, unpacked->as<float>());
    own = unpacked->data();
    device_memory_ = unpacked;
  }
  if (device::MemoryPtr copy =
          context.copy_for_peers(own, own_nbytes, "gathered for a checkpoint")) {
    device.record(device.compute())->synchronize();  // `unpacked` is freed
    device_memory_ = std::move(copy);
    own = device_memory_->data();
  }
  if (is_whole) {
    values_ = static_cast<const std::byte*>(own);
    keep(device_memory_, own_nbytes);
    return;
  }
  const std::size_t nbytes =
      static_cast<std::size_t>(from.layout->padded_numel) * nbytes_of(from.dtype);
  const auto full = device.allocate(nbytes, "gathered for a checkpoint");
  const auto& groups = context.groups;  // a shard for each rank, or for each of a copy
  const auto& group = from.shards > groups.shard->size() ? groups.world : groups.shard;
  group->all_gather(own, full->data(), own_nbytes)->wait_released();
  if (wants()) {
    values_ = full->data();
    keep(full, nbytes);
  } else {
    device_memory_.reset();
  }
}

/// Keeps a gathered array, in host memory if it is wanted there. The values are complete on return,
/// because the program may read them from any stream.
void GatheredTensors::keep(const device::MemoryPtr& full, std::size_t nbytes) {
  device::Device& device = *model_.context().device;
  if (!where_.on_host || device.kind() == settings::Device::cpu) {
    device.record(device.compute())->synchronize();
    device_memory_ = full;
    return;
  }
  host_memory_.resize(nbytes);
  device.copy(host_memory_.data(), values_, nbytes, device.compute());
  device.record(device.compute())->synchronize();
  values_ = host_memory_.data();
  device_memory_.reset();
}

/// Reads a buffer. It is kept apart from the gathered array, so that `at_hand_` stays the same on
/// all ranks, also on those that get no values.
const std::byte* GatheredTensors::bring_buffer(const BufferRecord& buffer) {
  buffer_ = acc::model::read_buffer(model_.context(), buffer);
  device::Device& device = *model_.context().device;
  if (where_.on_host || device.kind() == settings::Device::cpu) {
    return buffer_.data();
  }
  buffer_on_device_ =
      device.allocate(std::max<std::size_t>(buffer_.size(), 1), "gathered for a checkpoint");
  device.copy(buffer_on_device_->data(), buffer_.data(), buffer_.size(), device.compute());
  device.record(device.compute())->synchronize();
  return buffer_on_device_->data();
}

}  // namespace acc::state_dict
