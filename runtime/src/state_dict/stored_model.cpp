// SPDX-License-Identifier: Apache-2.0
#include "state_dict/stored_model.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "state_dict/device_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace acc::checkpoint {

using acc::model::BufferRecord;
using sharding::FlatParameter;
using sharding::ParameterRecord;

namespace {

template <typename Integer>
void to_floats(const std::vector<std::byte>& from, std::vector<float>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Integer value;
    std::memcpy(&value, from.data() + i * sizeof(Integer), sizeof(Integer));
    to[i] = static_cast<float>(value);
  }
}

/// Converts integers and booleans of a stored buffer (torch's num_batches_tracked is int64).
/// Returns false for another dtype.
bool integers_to_floats(const std::vector<std::byte>& from, Dtype dtype, std::vector<float>& to) {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::u8: to_floats<std::uint8_t>(from, to); return true;
    case Dtype::i8: to_floats<std::int8_t>(from, to); return true;
    case Dtype::i16: to_floats<std::int16_t>(from, to); return true;
    case Dtype::u16: to_floats<std::uint16_t>(from, to); return true;
    case Dtype::i32: to_floats<std::int32_t>(from, to); return true;
    case Dtype::u32: to_floats<std::uint32_t>(from, to); return true;
    case Dtype::i64: to_floats<std::int64_t>(from, to); return true;
    case Dtype::u64: to_floats<std::uint64_t>(from, to); return true;
    default: return false;
  }
}

}  // namespace

StoredModel::StoredModel(const std::filesystem::path& path, Want want, int index)
    : stored_(open_checkpoint(path, want, index)), reader_(stored_.catalog) {
  logger(Component::runtime)
      .debug("reading {} ({})", stored_.path.string(), to_string(stored_.format));
}

// A tied parameter may be stored under any of its names.
const StoredTensor& StoredModel::at(const ParameterRecord& record, const std::string& kind) const {
  if (const StoredTensor* found = stored_.catalog.find(record.name, kind)) {
    return *found;
  }
  for (const std::string& alias : record.aliases) {
    if (const StoredTensor* found = stored_.catalog.find(alias, kind)) {
      return *found;
    }
  }
  return stored_.catalog.at(record.name, kind, stored_.path.string());  // throws: not found
}

void StoredModel::check_shape(const StoredTensor& tensor, const Shape& expected) const {
  if (tensor.shape != expected) {
    throw Error(Errc::config, fmt::format("{}: tensor {} has shape {}, this model expects {}",
                                          stored_.path.string(), tensor.name,
                                          to_string(tensor.shape), to_string(expected)));
  }
}

// Any real dtype is converted to the one in which the value is kept.
void StoredModel::check_values(const StoredTensor& tensor, const Shape& expected) const {
  check_shape(tensor, expected);
  if (!is_real(tensor.dtype)) {
    throw Error(Errc::config,
                fmt::format("{}: tensor {} has dtype {}, expected float32, float64, bfloat16 or "
                            "float16",
                            stored_.path.string(), tensor.name, torch_name(tensor.dtype)));
  }
}

void StoredModel::check(detail::ModelState& model, BuffersMay buffers) const {
  for (const FlatParameter* flat : model.flats()) {
    for (const ParameterRecord& record : flat->parameters()) {
      check_values(at(record, "param"), record.shape);
    }
  }
  for (const BufferRecord* buffer : model.buffers()) {
    if (const StoredTensor* found = stored_.catalog.find(buffer->name, "param")) {
      check_shape(*found, buffer->shape);
    } else if (buffers == BuffersMay::not_be_missing) {
      static_cast<void>(stored_.catalog.at(buffer->name, "param", stored_.path.string()));
    }
  }
}

void StoredModel::check(const FlatArray& array) const {
  for (const ParameterRecord& record : array.flat->parameters()) {
    check_values(at(record, array.kind), record.shape);
  }
}

void StoredModel::read(const ParameterRecord& record, const std::string& kind, std::int64_t offset,
                       std::int64_t numel, Dtype dtype, void* out) {
  reader_.read(at(record, kind), offset, numel, dtype, out);
}

void StoredModel::read(device::Device& device, const FlatArray& array) {
  const FlatParameter& flat = *array.flat;
  const sharding::Shard owned = flat.owned();
  const auto size = static_cast<std::int64_t>(nbytes_of(array.dtype));
  // Fills a stretch of the shard: the parts of parameters from the checkpoint, and zeros between
  // them.
  const auto fill = [&](std::size_t at, std::span<std::byte> to) {
    const sharding::Shard part{owned.offset + static_cast<std::int64_t>(at) / size,
                               std::ssize(to) / size};
    std::int64_t end = 0;                         // end of the filled elements of the part
    const auto clear = [&](std::int64_t until) {  // zeros the padding between parameters
      std::fill(to.begin() + end * size, to.begin() + until * size, std::byte{0});
    };
    for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
      const auto piece = sharding::overlap(flat.layout(), i, part);
      if (piece.numel > 0) {
        clear(piece.in_shard);
        read(flat.parameters()[i], array.kind, piece.in_parameter, piece.numel,
             stored_dtype(array.dtype), to.data() + piece.in_shard * size);
        end = piece.in_shard + piece.numel;
      }
    }
    clear(part.numel);
  };
  write_bytes(device, array.values, static_cast<std::size_t>(owned.numel * size), fill);
}

// Buffers are not sharded, so all of a buffer is read.
void StoredModel::read_buffer(detail::ModelState& model, BufferRecord& buffer) {
  const StoredTensor* found = stored_.catalog.find(buffer.name, "param");
  if (found == nullptr) {
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(buffer.numel));
  if (is_real(found->dtype)) {
    reader_.read(*found, 0, buffer.numel, Dtype::f32, values.data());
  } else {
    std::vector<std::byte> integers(values.size() * size_of(found->dtype));
    reader_.read(*found, 0, buffer.numel, found->dtype, integers.data());
    if (!integers_to_floats(integers, found->dtype, values)) {
      check_values(*found, buffer.shape);  // throws: dtype
    }
  }
  acc::model::set_buffer(model.context(), buffer, values);
}

// Frees gathered copies, waits for collectives that use the memory, and then for the device.
void await_readers(detail::ModelState& model) {
  for (const auto& unit : model.shard_units()) {
    unit->release("loading weights");
  }
  for (FlatParameter* flat : model.flats()) {
    flat->settle();
  }
  model.context().await_compute();
}

}  // namespace acc::checkpoint
