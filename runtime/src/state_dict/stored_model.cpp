// SPDX-License-Identifier: Apache-2.0
#include "state_dict/stored_model.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "model/convert_values.hpp"
#include "state_dict/device_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace acc::state_dict {

using acc::model::BufferRecord;
using sharding::FlatParameter;
using sharding::ParameterRecord;

StoredModel::StoredModel(const InputPath& path, Want want, int index)
    : stored_(open_checkpoint(path, want, index)), reader_(stored_.catalog) {
  logger(Component::runtime)
      .debug("reading {} ({})", stored_.path.string(), to_string(stored_.format));
}

// A tied parameter or buffer may be stored under any of its names.
template <typename Record>
const StoredTensor* StoredModel::find(const Record& record, const std::string& kind) const {
  for (const std::string& name : record.names()) {
    if (const StoredTensor* const found = stored_.catalog.find(name, kind)) {
      return found;
    }
  }
  return nullptr;
}

const StoredTensor& StoredModel::at(const ParameterRecord& record, const std::string& kind) const {
  if (const StoredTensor* found = find(record, kind)) {
    return *found;
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
  if (!stored_.manifest && is_rank_zero(model)) {
    warn_of_others(model);
  }
  for (const FlatParameter* flat : model.flats()) {
    for (const ParameterRecord& record : flat->parameters()) {
      check_values(at(record, "param"), record.shape);
    }
  }
  for (const BufferRecord* buffer : model.buffers()) {
    if (const StoredTensor* found = find(*buffer, "param")) {
      check_shape(*found, buffer->shape);
      const std::optional<DType> dtype = dtype_in_memory(found->dtype);
      if (!dtype || !acc::model::converts(*dtype, buffer->dtype)) {
        throw buffer_error(*found, *buffer, "");
      }
    } else if (buffers == BuffersMay::not_be_missing) {
      static_cast<void>(stored_.catalog.at(buffer->name, "param", stored_.path.string()));
    }
  }
}

void StoredModel::warn_of_others(detail::ModelState& model) const {
  std::set<std::string> known;
  const auto add = [&known](const auto& record) {
    for (const std::string& name : record.names()) {
      known.insert(name);
    }
  };
  for (const FlatParameter* flat : model.flats()) {
    std::ranges::for_each(flat->parameters(), add);
  }
  for (const BufferRecord* buffer : model.buffers()) {
    add(*buffer);
  }
  std::vector<std::string_view> others;
  for (const StoredTensor& tensor : stored_.catalog.tensors) {
    if (tensor.kind == "param" && !known.contains(tensor.name)) {
      others.push_back(tensor.name);
    }
  }
  if (!others.empty()) {
    logger(Component::runtime)
        .warn("{}: this model lacks {} of its tensors, the first of them {}", stored_.path.string(),
              others.size(), others.front());
  }
}

// The weights that this model ties may have been trained apart, and then none of them is right.
void StoredModel::check_tied(const ParameterRecord& record, const StoredTensor& first,
                             std::int64_t offset, std::span<const std::byte> values, Dtype dtype) {
  checkpoint::SharedBytes shared;
  shared.other(first);
  for (const std::string& name : record.names()) {
    const StoredTensor* const other = stored_.catalog.find(name, "param");
    if (other == nullptr || shared.other(*other) != nullptr) {
      continue;
    }
    bool differs = other->shape != first.shape;
    if (!differs) {
      std::vector<std::byte> read(values.size());
      const auto numel = static_cast<std::int64_t>(values.size() / size_of(dtype));
      reader_.read(*other, offset, numel, dtype, read.data());
      differs = !std::ranges::equal(values, read);
    }
    if (differs) {
      throw Error(Errc::config,
                  fmt::format("{}: tensors {} and {} differ, but this model ties them; do not tie "
                              "them, or remove one from the checkpoint",
                              stored_.path.string(), first.name, name));
    }
  }
}

void StoredModel::check(const FlatArray& array) const {
  for (const std::size_t i : array.parameters) {
    const ParameterRecord& record = (*array.records)[i];
    check_values(at(record, array.kind), record.shape);
  }
}

void StoredModel::read(const ParameterRecord& record, const std::string& kind, std::int64_t offset,
                       std::int64_t numel, Dtype dtype, void* out) {
  const StoredTensor& first = at(record, kind);
  reader_.read(first, offset, numel, dtype, out);
  if (kind == "param" && !stored_.manifest) {
    const std::size_t nbytes = static_cast<std::size_t>(numel) * size_of(dtype);
    check_tied(record, first, offset, {static_cast<const std::byte*>(out), nbytes}, dtype);
  }
}

void StoredModel::read(device::Device& device, const FlatArray& array) {
  const std::vector<ParameterRecord>& records = *array.records;
  if (array.packed != nullptr) {
    std::vector<float> values(optim::PackedStates::kPartNumel);
    for (const auto& part : array.packed->parts()) {
      read(records[part.parameter], array.kind, part.begin, part.numel, Dtype::f32, values.data());
      array.packed->write(array.state, part, values.data());
    }
    return;
  }
  const sharding::Shard owned = array.owned;
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
    for (const std::size_t i : array.parameters) {
      const auto piece = sharding::overlap(*array.layout, i, part);
      if (piece.numel > 0) {
        clear(piece.in_shard);
        read(records[i], array.kind, piece.in_parameter, piece.numel, stored_dtype(array.dtype),
             to.data() + piece.in_shard * size);
        end = piece.in_shard + piece.numel;
      }
    }
    clear(part.numel);
  };
  write_bytes(device, array.values, static_cast<std::size_t>(owned.numel * size), fill);
}

Error StoredModel::buffer_error(const StoredTensor& tensor, const BufferRecord& buffer,
                                const std::string& what) const {
  return {Errc::config, fmt::format("{}: tensor {} has dtype {}{}, which this model's buffer of "
                                    "dtype {} cannot hold",
                                    stored_.path.string(), tensor.name, torch_name(tensor.dtype),
                                    what, to_string(buffer.dtype))};
}

// Buffers are not sharded, so all of a buffer is read.
void StoredModel::read_buffer(detail::ModelState& model, BufferRecord& buffer) {
  const StoredTensor* found = find(buffer, "param");
  if (found == nullptr) {
    return;
  }
  const auto numel = static_cast<std::size_t>(buffer.numel);
  std::vector<std::byte> stored(numel * size_of(found->dtype));
  reader_.read(*found, 0, buffer.numel, found->dtype, stored.data());
  std::vector<std::byte> values(buffer.nbytes());
  if (const auto bad = acc::model::convert_values(stored.data(), *dtype_in_memory(found->dtype),
                                                  values.data(), buffer.dtype, numel)) {
    throw buffer_error(*found, buffer, fmt::format(" and a value in element {}", *bad));
  }
  acc::model::set_buffer(model.context(), buffer, values);
}

// At the barrier all ranks had read. A checkpoint that is unchanged after it was the same for all
// of them, also if `path` is a series or a symbolic link. A read that failed may have failed
// because the checkpoint was replaced.
void prove_unchanged(Attempt& attempt, const sharding::Groups& groups, const InputPath& opened,
                     const std::string& path) {
  groups.world->barrier()->wait();
  const auto check = [&] {
    opened.check_unchanged();
    if (!opened.path().empty() && find_checkpoint(path) != opened.path()) {
      throw Error(Errc::config, fmt::format("{}: a new checkpoint was saved while {} was loaded; "
                                            "read it again when the save is over",
                                            path, opened.string()));
    }
  };
  attempt(check);
  attempt.explain(check);
}

// Frees gathered copies, waits for collectives that use the memory, and then for the device.
void await_readers(detail::ModelState& model) {
  model.forget_forwards();
  for (const auto& unit : model.shard_units()) {
    unit->release("loading weights");
  }
  for (FlatParameter* flat : model.flats()) {
    flat->settle();
  }
  model.context().await_compute();
  model.late_copies.before_writes(*model.context().updater);
}

void renew_weights(detail::ModelState& model) {
  for (sharding::FlatParameter* flat : model.flats()) {
    flat->round_master();
    flat->publish();
  }
}

}  // namespace acc::state_dict
