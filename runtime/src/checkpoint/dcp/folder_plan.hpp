#pragma once

#include "checkpoint/dcp/metadata.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

/// Which rank writes which box of which tensor where in its file, and so the whole `.metadata`: a
/// pure function of what is saved and of the world, so that no rank asks another.
namespace acc::checkpoint::dcp {

/// A tensor that is saved: its name in the DCP ("model.h.0.weight") and path.
struct PlannedTensor {
  std::string name;
  Path path;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

/// A value that is pickled into an archive of its own ("optimizer.param_groups.0.lr").
struct PlannedValue {
  std::string name;
  Path path;
  std::string pickle;  ///< all of its data.pkl; empty in a plan that was read
  int rank = 0;        ///< who writes it
  std::uint64_t pickle_nbytes = pickle.size();
};

/// A box of a tensor that a rank writes. `source`: what the rule made it from, for who brings the
/// bytes: elements [source_begin, + box.numel()) of array number `source` (cut_arrays), which are
/// contiguous there and row-major in the box.
struct PlannedChunk {
  std::size_t tensor = 0;
  Box box;
  std::size_t source = 0;
  std::int64_t source_begin = 0;

  bool operator==(const PlannedChunk&) const = default;
};

struct CutArray;

/// Who writes what. A rank's file has its chunks in the order of the tensors, in one tensor in the
/// order of their elements. Pure; any thread.
class CutRule {
 public:
  virtual ~CutRule() = default;
  /// What a rank writes, in the order of its file.
  [[nodiscard]] virtual std::vector<PlannedChunk> chunks(int rank) const = 0;
  /// The same, asked the other way: what all ranks write of a tensor, in the order of its elements.
  using Visit = std::function<void(int rank, const PlannedChunk& chunk)>;
  virtual void for_each_chunk(std::size_t tensor, const Visit& visit) const = 0;
  /// Of those ranks whose chunks hold any of the tensor's elements [begin, end), which lie in it.
  /// Time: O(what it visits), but for a search.
  virtual void for_each_chunk(std::size_t tensor, std::int64_t begin, std::int64_t end,
                              const Visit& visit) const = 0;
  /// What cut_arrays was given; null: of cut_by_rows.
  [[nodiscard]] virtual const std::vector<CutArray>* arrays() const { return nullptr; }
};

/// Tensor number i in rows, as FSDP cuts (row_box); source = tensor, source_begin = its first
/// element in the tensor. Of a tensor with fewer rows than ranks, the first rank that has none
/// writes an empty box, as torch does.
std::unique_ptr<CutRule> cut_by_rows(const std::vector<PlannedTensor>& tensors, int world_size);

/// Arrays of elements (flat parameters, their moments, whole buffers), each cut in `shards` equal
/// shards. Rank r, of row-major (replica, shard), holds shard r % shards and has r / shards of
/// world_size / shards replicas. What a shard has of all arrays that are cut into as many, tensor
/// after tensor, is one line of bytes, of which each replica writes an equal part: a large world
/// writes few large pieces, not a sliver of each tensor. Borders between parts move by up to 1/64
/// of a part to where they cost no box: the end of a tensor, or of a row.
struct CutArray {
  struct Member {
    std::size_t tensor = 0;
    std::int64_t offset = 0;  ///< of its first element in the array
  };
  std::vector<Member> members;    ///< a tied name is a second member at the same offset
  std::int64_t padded_numel = 0;  ///< a multiple of `shards`
  int shards = 1;
  bool rank_zero_only = false;  ///< whole and written by rank 0
};
/// Each tensor is a member once. Tensors without elements are rank 0's. Throws Error(internal) for
/// arrays that do not add up.
std::unique_ptr<CutRule> cut_arrays(const std::vector<CutArray>& arrays,
                                    const std::vector<PlannedTensor>& tensors, int world_size);

struct FolderPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<PlannedValue> values;
  int world_size = 1;
  std::shared_ptr<const CutRule> rule;
};

/// One rank's file, "__<rank>_0.distcp": its values, then its chunks, each an archive.
struct FilePlan {
  struct Slot {
    std::size_t index = 0;  ///< in `FolderPlan::values` or in `chunks`
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

/// Bytes of the values of each rank that has some: its first chunk comes behind them.
std::map<int, std::uint64_t> values_nbytes(const FolderPlan& plan);
/// The entries of `.metadata`, tensors first, without the chunks of these.
std::vector<Entry> entries_of(const FolderPlan& plan);
/// `.metadata` of the whole folder, handed out in pieces. Time: O(chunks); memory: O(tensors +
/// ranks). `save_id`: of format_metadata.
void write_metadata(const FolderPlan& plan, const std::function<void(std::string_view)>& write,
                    const std::string& save_id = {});

}  // namespace acc::checkpoint::dcp
