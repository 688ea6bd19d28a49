#pragma once

#include "checkpoint/tensor/box.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What is stored where: the one form that every format's reader gives and every reader of tensors
/// takes. Pure data.
namespace acc::checkpoint {

/// How the bytes of a piece lie in its file.
enum class Packing : std::uint8_t {
  raw,      ///< the elements themselves
  archive,  ///< a torch.save archive of one tensor, whose shape is the piece's (a DCP entry)
};

/// A box of a tensor, contiguous and row-major in one file.
struct StoredPiece {
  Box box;
  std::uint32_t file = 0;    ///< in Catalog::files
  std::uint64_t offset = 0;  ///< bytes
  std::uint64_t nbytes = 0;  ///< raw: of the elements; archive: of the whole archive
  Packing packing = Packing::raw;
  std::int32_t record = -1;  ///< raw: in Catalog::records, which holds its checksums; -1: none
};

/// Bytes of a file that were written together, and by what they are checked.
struct StoredRecord {
  std::string name;  ///< for messages: "data/0", a tensor's name
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;                 ///< of all of it; 0: the writer left none
  std::vector<std::uint32_t> blocks = {};  ///< of each torch::kBlock bytes; may be empty
};

using VisitPiece = std::function<void(const StoredPiece& piece)>;

/// Pieces of tensors that are computed where they are asked for: of a checkpoint that thousands of
/// ranks wrote, nobody needs a list of all. Any thread.
class PieceRule {
 public:
  virtual ~PieceRule() = default;
  /// Those of tensor number `tensor` that hold any of its elements [begin, end), in their order.
  virtual void for_each_piece(std::size_t tensor, std::int64_t begin, std::int64_t end,
                              const VisitPiece& visit) const = 0;
};

/// Its pieces cover the shape once; whoever fills it in checks that, or has a rule for it. Readers
/// ask for them by the functions.
struct StoredTensor {
  /// The parameter's (or buffer's) full name, as exported: without DCP's top key.
  std::string name;
  /// "param" (buffers too), "exp_avg", "exp_avg_sq", "momentum_buffer", "step", or another the
  /// format names.
  std::string kind = "param";
  std::string stored_name;  ///< as the format has it: "optimizer.state.h.0.weight.exp_avg"
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<StoredPiece> pieces;  ///< empty where `rule` tells them
  std::shared_ptr<const PieceRule> rule = nullptr;
  std::size_t number = 0;  ///< for the rule

  /// Those that hold any of elements [begin, end).
  void for_each_piece(std::int64_t begin, std::int64_t end, const VisitPiece& visit) const;
  [[nodiscard]] std::vector<StoredPiece> all_pieces() const;
};

struct Catalog {
  using Key = std::pair<std::string, std::string>;  ///< name, kind

  std::vector<std::filesystem::path> files;
  std::vector<StoredTensor> tensors;  ///< in the order of the format
  std::vector<StoredRecord> records;

  /// Adds a file or finds it. `nbytes`: its size, where a file of any other is a damaged one.
  std::uint32_t file(const std::filesystem::path& path,
                     std::optional<std::uint64_t> nbytes = std::nullopt);
  [[nodiscard]] std::optional<std::uint64_t> expected_nbytes(std::uint32_t file) const;
  /// Call `index` after the last tensor; throws Error(config) for a name and kind that is there
  /// twice.
  void index();
  [[nodiscard]] const StoredTensor* find(std::string_view name, std::string_view kind) const;
  /// Throws Error(config): `where`, the name, how many others there are.
  [[nodiscard]] const StoredTensor& at(std::string_view name, std::string_view kind,
                                       const std::string& where) const;

 private:
  std::map<Key, std::size_t> by_name_;
  std::map<std::filesystem::path, std::uint32_t> by_path_;
  std::vector<std::optional<std::uint64_t>> expected_nbytes_;  ///< of the first files
};

/// What an optimizer's parameter group had of its own.
struct StoredGroup {
  std::map<std::string, double> hyper_parameters;  ///< booleans are 0 and 1; None is absent
  std::vector<std::string> parameters;             ///< full names
};

/// What of a training run is no tensor.
struct TrainingState {
  std::optional<std::int64_t> step;  ///< optimizer steps made
  std::int64_t skipped_steps = 0;
  std::string optimizer;  ///< "adamw", "sgd", or empty where the format does not say
  std::vector<StoredGroup> groups;
  std::map<std::string, double> loss_scaler;  ///< LossScaler::state(); empty: there was none
  std::set<std::string> buffers = {};         ///< what is known to be no parameter, frozen or not
};

/// Who wrote a checkpoint, for `inspect` and for messages.
struct Provenance {
  std::string format;  ///< "torch DCP", "safetensors", "torch.save", "DeepSpeed ZeRO 3", …
  std::string writer;  ///< "acclaunch 0.1.0", "torch", "DeepSpeed 0.19.8", or empty
  int world_size = 0;  ///< of the run that saved; 0: unknown
};

}  // namespace acc::checkpoint
