// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "state_dict/model_files.hpp"
#include "state_dict/saved_arrays.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace acc::state_dict {

/// Contents of a snapshot in memory besides its values, and where each value is.
struct SnapshotMeta {
  /// Elements [begin, begin + numel) of a parameter. at: of the first one, among the values.
  struct Piece {
    std::string name;
    std::int64_t begin;
    std::int64_t numel;
    std::uint64_t at;
  };
  struct Array {
    std::string kind;
    DType dtype;
    bool is_replicated;  ///< ranks with the same shard have the same values
    std::uint64_t at;    ///< of its values
    std::uint64_t nbytes;
    std::vector<Piece> pieces;
  };
  struct Buffer {
    std::string name;
    std::uint64_t nbytes;
    std::uint64_t at;
  };
  struct Model {
    std::int64_t steps = 0;
    std::int64_t skipped_steps = 0;
    std::uint64_t seed = 0;
    std::map<std::string, double> scaler = {};
    std::vector<Array> arrays = {};
    std::vector<Buffer> buffers = {};
  };
  std::vector<Model> models;
  SavedState state;
  std::uint64_t values_nbytes = 0;
};

/// The arrays of a model in the order of a snapshot.
std::vector<FlatArray> snapshot_arrays(const Part& part);
/// Contents of a snapshot of this rank's state, in the order of `snapshot_arrays`, then of buffers.
SnapshotMeta meta_of(std::span<const Part> parts, const SavedState& state);
/// The same without the values that ranks with the same shard have too: new places of the others.
SnapshotMeta without_replicated(const SnapshotMeta& meta);

std::string pack(const SnapshotMeta& meta);
/// packed: by this library; its checksum has been compared. Throws Error(internal).
SnapshotMeta unpack(std::string packed);

/// Hash of a text.
std::uint64_t hash_of(const std::string& text);
/// Hash of everything that a run must have in common with the one that made a snapshot, whatever
/// the number of ranks: names, shapes, dtypes, the rule.
std::uint64_t model_hash(std::span<const Part> parts);
/// Hash of what this rank holds.
std::uint64_t layout_hash(const SnapshotMeta& meta);

}  // namespace acc::state_dict
