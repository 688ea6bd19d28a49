#pragma once

#include "checkpoint/files/atomic_folder.hpp"
#include "checkpoint/piece_table.hpp"
#include "checkpoint/safetensors/file.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// A folder that any number of ranks writes and any other number reads:
///   rank_00000.safetensors …  what each rank contributed, 1-D tensors "<tensor>/<kind>/<offset>"
///   metadata.json             written last: the tensors, where their pieces are, the counters
/// Nothing here talks to another rank; the caller puts barriers between the steps. All functions
/// throw Error(config) that names the path and what was expected and found.
namespace acc::checkpoint {

/// Elements [offset, offset + data.size()) of a tensor's values of one kind.
struct Piece {
  std::string tensor;
  std::string kind;
  std::int64_t offset = 0;
  std::span<const float> data;
};

struct CheckpointTensor {
  std::string name;
  Shape shape;
  std::vector<std::string> kinds;  ///< of values that are kept for it: "param", "exp_avg", …

  bool operator==(const CheckpointTensor&) const = default;
};

/// What a parameter group of the optimizer had of its own: for the reader, loading asks for none.
struct CheckpointGroup {
  std::string name;
  std::map<std::string, double> hyper_parameters;
  std::vector<std::string> parameters;

  bool operator==(const CheckpointGroup&) const = default;
};

/// All of metadata.json but the places of the pieces.
struct OldManifest {
  int world_size = 1;
  std::string strategy;  ///< of the saving run, for messages
  std::int64_t step = 0;
  std::map<std::string, std::int64_t> program;
  std::string optimizer;  ///< "adamw" or "sgd"
  std::map<std::string, double> hyper_parameters;
  std::vector<CheckpointGroup> groups = {};
  std::int64_t skipped_steps = 0;
  std::map<std::string, double> loss_scaler = {};  ///< empty: there was none
  std::vector<CheckpointTensor> tensors = {};
  std::map<std::string, std::string> aliases = {};  ///< second name of a tied tensor -> its name

  bool operator==(const OldManifest&) const = default;
};

/// One save: `begin` on rank 0; then, after a barrier, `write_rank_file` on every rank; then, after
/// a barrier, `commit` on rank 0. Until `commit` an older checkpoint of that name stays whole, and
/// what an unfinished save left is removed by the next one. All machines must see the folder.
class CheckpointWriter {
 public:
  /// `id`: the same on all ranks, and another one for every save.
  CheckpointWriter(const std::filesystem::path& folder, std::uint32_t id);

  void begin();
  /// Each element of a tensor's kind is written by exactly one rank. A rank without pieces writes
  /// its file all the same.
  void write_rank_file(int rank, std::span<const Piece> pieces);
  /// Reads the headers of all rank files and checks that they hold every element of every tensor
  /// once before the older checkpoint is replaced.
  void commit(const OldManifest& manifest);

 private:
  AtomicFolder folder_;
};

/// A checkpoint opened for reading. Rank files are mapped when first read from, and only the bytes
/// asked for are touched. One thread at a time.
class ShardedCheckpoint {
 public:
  explicit ShardedCheckpoint(const std::filesystem::path& folder);

  [[nodiscard]] const OldManifest& manifest() const noexcept { return manifest_; }
  /// Whether values of that kind are stored for the tensor, by its name or its alias.
  [[nodiscard]] bool contains(const std::string& tensor, const std::string& kind) const;
  /// Throws where the tensor is missing or has another shape.
  void expect(const std::string& tensor, const Shape& shape) const;
  /// Elements [offset, offset + out.size()), put together from whatever pieces hold them.
  void read(const std::string& tensor, const std::string& kind, std::int64_t offset,
            std::span<float> out);

 private:
  [[nodiscard]] const CheckpointTensor* find(const std::string& tensor) const;
  [[nodiscard]] const CheckpointTensor& at(const std::string& tensor) const;
  const SafetensorsFile& file(int index);

  std::filesystem::path folder_;
  OldManifest manifest_;
  PieceTable table_;
  std::map<std::string, std::size_t> by_name_;
  std::map<int, std::unique_ptr<SafetensorsFile>> files_;  ///< opened so far, by rank
};

}  // namespace acc::checkpoint
