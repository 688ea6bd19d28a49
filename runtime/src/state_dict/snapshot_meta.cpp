// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_meta.hpp"

#include "acc/base/error.hpp"
#include "model/buffers.hpp"
#include "sharding/initial_values.hpp"
#include "sharding/shard_layout.hpp"
#include "state_dict/rule_states.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>
#include <variant>

namespace acc::state_dict {
namespace {

/// Writes values one after the other.
class Packer {
 public:
  template <typename T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(value.size());
    text_ += value;
  }
  void values(const ProgramState& state) {
    number(state.size());
    for (const auto& [name, value] : state) {
      text(name);
      number(value.index());
      if (const auto* const integer = std::get_if<std::int64_t>(&value)) {
        number(*integer);
      } else if (const auto* const real = std::get_if<double>(&value)) {
        number(*real);
      } else {
        text(std::get<std::string>(value));
      }
    }
  }
  void figures(const std::map<std::string, double>& all) {
    number(all.size());
    for (const auto& [name, value] : all) {
      text(name);
      number(value);
    }
  }
  void array(const SnapshotMeta::Array& array) {
    text(array.kind);
    number(array.dtype);
    number(array.is_replicated);
    number(array.at);
    number(array.nbytes);
    number(array.pieces.size());
    for (const SnapshotMeta::Piece& piece : array.pieces) {
      text(piece.name);
      number(piece.begin);
      number(piece.numel);
      number(piece.at);
    }
  }
  [[nodiscard]] const std::string& packed() const { return text_; }

 private:
  std::string text_;
};

/// Reads what a Packer wrote.
class Unpacker {
 public:
  explicit Unpacker(std::string packed) : text_(std::move(packed)) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::size_t>();
    return {take(size), size};
  }
  ProgramState values() {
    ProgramState state;
    for (auto left = number<std::size_t>(); left > 0; --left) {
      std::string name = text();
      switch (number<std::size_t>()) {
        case 0: state[std::move(name)] = number<std::int64_t>(); break;
        case 1: state[std::move(name)] = number<double>(); break;
        default: state[std::move(name)] = text(); break;
      }
    }
    return state;
  }
  std::map<std::string, double> figures() {
    std::map<std::string, double> all;
    for (auto left = number<std::size_t>(); left > 0; --left) {
      std::string name = text();
      all[std::move(name)] = number<double>();
    }
    return all;
  }
  SnapshotMeta::Array array() {
    SnapshotMeta::Array array;
    array.kind = text();
    array.dtype = number<DType>();
    array.is_replicated = number<bool>();
    array.at = number<std::uint64_t>();
    array.nbytes = number<std::uint64_t>();
    for (auto left = number<std::size_t>(); left > 0; --left) {
      SnapshotMeta::Piece piece;
      piece.name = text();
      piece.begin = number<std::int64_t>();
      piece.numel = number<std::int64_t>();
      piece.at = number<std::uint64_t>();
      array.pieces.push_back(std::move(piece));
    }
    return array;
  }

 private:
  const char* take(std::size_t nbytes) {
    if (text_.size() - at_ < nbytes) {
      throw Error(Errc::internal, "a snapshot in memory ends before its last value");
    }
    return text_.data() + std::exchange(at_, at_ + nbytes);
  }

  std::string text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<FlatArray> snapshot_arrays(const Part& part) {
  auto arrays = weight_arrays(*part.model);
  std::ranges::move(moment_arrays(*part.model, *part.optimizer), std::back_inserter(arrays));
  return arrays;
}

SnapshotMeta meta_of(std::span<const Part> parts, const SavedState& state) {
  SnapshotMeta meta{.models = {}, .state = with_rule_states(parts, state)};
  std::uint64_t at = 0;
  for (const Part& part : parts) {
    SnapshotMeta::Model model{.steps = part.optimizer->steps,
                              .skipped_steps = part.optimizer->skipped_steps,
                              .seed = part.model->seed()};
    if (part.optimizer->scaler()) {
      model.scaler = part.optimizer->scaler()->state();
    }
    const int shards = part.model->context().groups.plan.shard_size();
    for (const FlatArray& array : snapshot_arrays(part)) {
      const std::size_t size = nbytes_of(array.dtype);
      SnapshotMeta::Array held{.kind = array.kind,
                               .dtype = array.dtype,
                               .is_replicated = !array.ignored && array.shards <= shards,
                               .at = at,
                               .nbytes = static_cast<std::uint64_t>(array.owned.numel) * size,
                               .pieces = {}};
      for (const std::size_t i : array.parameters) {
        const sharding::Overlap piece = overlap(*array.layout, i, array.owned);
        if (piece.numel > 0) {
          held.pieces.push_back({(*array.records)[i].name, piece.in_parameter, piece.numel,
                                 at + static_cast<std::uint64_t>(piece.in_shard) * size});
        }
      }
      at += held.nbytes;
      model.arrays.push_back(std::move(held));
    }
    for (const auto* const buffer : part.model->buffers()) {
      model.buffers.push_back({buffer->name, buffer->nbytes(), at});
      at += buffer->nbytes();
    }
    meta.models.push_back(std::move(model));
  }
  meta.values_nbytes = at;
  return meta;
}

SnapshotMeta without_replicated(const SnapshotMeta& meta) {
  SnapshotMeta less = meta;
  std::uint64_t at = 0;
  for (SnapshotMeta::Model& model : less.models) {
    std::erase_if(model.arrays, [](const auto& array) { return array.is_replicated; });
    for (SnapshotMeta::Array& array : model.arrays) {
      for (SnapshotMeta::Piece& piece : array.pieces) {
        piece.at = piece.at - array.at + at;
      }
      array.at = at;
      at += array.nbytes;
    }
    for (SnapshotMeta::Buffer& buffer : model.buffers) {
      buffer.at = at;
      at += buffer.nbytes;
    }
  }
  less.values_nbytes = at;
  return less;
}

std::string pack(const SnapshotMeta& meta) {
  Packer packer;
  packer.number(meta.values_nbytes);
  packer.number(meta.models.size());
  for (const SnapshotMeta::Model& model : meta.models) {
    packer.number(model.steps);
    packer.number(model.skipped_steps);
    packer.number(model.seed);
    packer.figures(model.scaler);
    packer.number(model.arrays.size());
    std::ranges::for_each(model.arrays, [&](const auto& array) { packer.array(array); });
    packer.number(model.buffers.size());
    for (const SnapshotMeta::Buffer& buffer : model.buffers) {
      packer.text(buffer.name);
      packer.number(buffer.nbytes);
      packer.number(buffer.at);
    }
  }
  packer.values(meta.state.program);
  packer.values(meta.state.of_rank);
  return packer.packed();
}

SnapshotMeta unpack(std::string packed) {
  Unpacker from(std::move(packed));
  SnapshotMeta meta;
  meta.values_nbytes = from.number<std::uint64_t>();
  for (auto left = from.number<std::size_t>(); left > 0; --left) {
    SnapshotMeta::Model model;
    model.steps = from.number<std::int64_t>();
    model.skipped_steps = from.number<std::int64_t>();
    model.seed = from.number<std::uint64_t>();
    model.scaler = from.figures();
    for (auto arrays = from.number<std::size_t>(); arrays > 0; --arrays) {
      model.arrays.push_back(from.array());
    }
    for (auto buffers = from.number<std::size_t>(); buffers > 0; --buffers) {
      SnapshotMeta::Buffer buffer;
      buffer.name = from.text();
      buffer.nbytes = from.number<std::uint64_t>();
      buffer.at = from.number<std::uint64_t>();
      model.buffers.push_back(std::move(buffer));
    }
    meta.models.push_back(std::move(model));
  }
  meta.state.program = from.values();
  meta.state.of_rank = from.values();
  return meta;
}

std::uint64_t hash_of(const std::string& text) {
  return sharding::stream_of(text, 0);
}

std::uint64_t model_hash(std::span<const Part> parts) {
  std::string text;
  for (const Part& part : parts) {
    std::set<std::string> lines;
    for (const FlatArray& array : snapshot_arrays(part)) {
      for (const std::size_t i : array.parameters) {
        const sharding::ParameterRecord& record = (*array.records)[i];
        lines.insert(fmt::format("{} of {}: {} {}", array.kind, record.name, to_string(array.dtype),
                                 fmt::join(record.shape, "x")));
      }
    }
    for (const auto* const buffer : part.model->buffers()) {
      lines.insert(
          fmt::format("buffer {}: {} {}", buffer->name, to_string(buffer->dtype), buffer->numel));
    }
    text += fmt::format("{}\n{}\n", part.optimizer->name(), fmt::join(lines, "\n"));
  }
  return hash_of(text);
}

std::uint64_t layout_hash(const SnapshotMeta& meta) {
  SnapshotMeta where = meta;
  where.state = {};
  for (SnapshotMeta::Model& model : where.models) {
    model.steps = 0;
    model.skipped_steps = 0;
    model.seed = 0;
    model.scaler.clear();
  }
  return hash_of(pack(where));
}

}  // namespace acc::state_dict
