// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/metadata.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The plan of a DCP folder: which rank writes which box of which tensor at which place of its
/// file. It is a pure function of the saved tensors and the world size. So each rank computes its
/// part of the plan without communication, and rank 0 computes all of `.metadata`.
namespace acc::checkpoint::dcp {

/// A tensor to be saved: its name ("model.h.0.weight") and its path in the state dict.
struct PlannedTensor {
  std::string name;
  Path path;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// A value that is pickled into its own archive ("optimizer.param_groups.0.lr").
struct PlannedValue {
  std::string name;
  Path path;
  std::string pickle;  ///< content of data.pkl; empty in a plan that was read from a manifest
  int rank = 0;        ///< the rank that writes it
  std::uint64_t pickle_nbytes = pickle.size();
};

/// A box of a tensor that one rank writes. `source` and `source_begin` identify the bytes for the
/// caller that provides them: with cut_arrays, elements [source_begin, source_begin + box.numel())
/// of array number `source`. They are contiguous in the array and row-major in the box.
struct PlannedChunk {
  std::size_t tensor = 0;
  Box box;
  std::size_t source = 0;
  std::int64_t source_begin = 0;

  bool operator==(const PlannedChunk&) const = default;
};

struct CutArray;

/// Decides which rank writes what. A rank's file has its chunks in the order of the tensors, and
/// within a tensor in the order of their elements. Pure; thread-safe.
class CutRule {
 public:
  virtual ~CutRule() = default;
  /// Returns the chunks that a rank writes, in the order of its file.
  [[nodiscard]] virtual std::vector<PlannedChunk> chunks(int rank) const = 0;
  /// Visits the chunks that all ranks write of one tensor, in the order of its elements.
  using Visit = std::function<void(int rank, const PlannedChunk& chunk)>;
  virtual void for_each_chunk(std::size_t tensor, const Visit& visit) const = 0;
  /// Visits the chunks of those ranks that hold any of the tensor's elements [begin, end), a range
  /// in the tensor. May visit further chunks of these ranks. Takes time for what it visits, plus a
  /// binary search.
  virtual void for_each_chunk(std::size_t tensor, std::int64_t begin, std::int64_t end,
                              const Visit& visit) const = 0;
  /// The arrays that were given to cut_arrays; null for a rule of cut_by_rows.
  [[nodiscard]] virtual const std::vector<CutArray>* arrays() const { return nullptr; }
};

/// Cuts every tensor in rows, as FSDP does (row_box). The source of a chunk is its tensor, and
/// source_begin its first element in the tensor. If a tensor has fewer rows than there are ranks,
/// the first rank without rows writes an empty box, as torch does.
std::unique_ptr<CutRule> cut_by_rows(const std::vector<PlannedTensor>& tensors, int world_size);

/// An array of elements (a flat parameter, one of its moments, a whole buffer) that is cut into
/// `shards` equal shards. Ranks are numbered row-major by (replica, shard): rank r holds shard r %
/// shards, as replica r / shards of world_size / shards. The part of a shard in all arrays with the
/// same number of shards, tensor after tensor, is one line of bytes. Each replica writes an equal
/// part of the line, so that a large world writes few large pieces instead of a sliver of every
/// tensor. Borders between parts move by up to 1/64 of a part to the end of a tensor or of a row,
/// where they cut no box.
struct CutArray {
  struct Member {
    std::size_t tensor = 0;
    std::int64_t offset = 0;  ///< of its first element in the array
  };
  std::vector<Member> members;    ///< a tied name is a second member at the same offset
  std::int64_t padded_numel = 0;  ///< a multiple of `shards`
  int shards = 1;
  bool rank_zero_only = false;  ///< not cut: written whole by rank 0
};
/// Each tensor must be a member of exactly one array. Rank 0 writes tensors without elements.
/// Throws Error(internal) if arrays and tensors do not fit together.
std::unique_ptr<CutRule> cut_arrays(const std::vector<CutArray>& arrays,
                                    const std::vector<PlannedTensor>& tensors, int world_size);

struct FolderPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<PlannedValue> values;
  int world_size = 1;
  std::shared_ptr<const CutRule> rule;
  /// The step that is saved. Each archive then has a mark of it, of its name and of its box, by
  /// which a reader refuses a file of another rank or step. Absent: no marks.
  std::optional<std::int64_t> step = {};
};

/// Returns the mark (TorchFileWriter::finish) of a value, or of a piece of a tensor; 0 if the plan
/// has no step.
std::uint64_t mark_of(const FolderPlan& plan, std::string_view name, const Box& box = {});

/// Content of one rank's file "__<rank>_0.distcp": its values, then its chunks. Each is an archive.
struct FilePlan {
  struct Slot {
    std::size_t index = 0;  ///< index in FolderPlan::values or in `chunks`
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
  };
  std::string name;
  std::vector<PlannedChunk> chunks;
  std::vector<Slot> value_slots, chunk_slots;
  std::uint64_t nbytes = 0;
};
FilePlan plan_file(const FolderPlan& plan, int rank);
std::string file_name(int rank);

/// Returns the total size of the values of each rank that has some. The rank's first chunk follows
/// them.
std::map<int, std::uint64_t> values_nbytes(const FolderPlan& plan);
/// Returns the entries of `.metadata`, tensors first, without the chunks of the tensors.
std::vector<Entry> entries_of(const FolderPlan& plan);
/// Writes `.metadata` of the whole folder in pieces. Time: O(chunks); memory: O(tensors + ranks).
/// `save_id`: see format_metadata.
void write_metadata(const FolderPlan& plan, const std::function<void(std::string_view)>& write,
                    const std::string& save_id = {});

}  // namespace acc::checkpoint::dcp
