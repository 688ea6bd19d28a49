// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_path.hpp"
#include "acc/checkpoint/tensor/box.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The common form of every checkpoint: which elements of which tensor are stored where. Each
/// format's reader fills in a Catalog, and TensorReader reads tensors from it. Pure data, without
/// input or output.
///
/// Invariants of a complete catalog:
/// - The pieces of a tensor cover its shape exactly once (readers check this with cover_fault, or
///   build the pieces so that it holds). Empty pieces do not appear.
/// - A piece is contiguous and row-major in one file, unless its tensor has strides. With
///   Packing::raw its elements are at [offset, offset + nbytes); with Packing::archive a torch.save
///   archive of exactly this box is, which may have strides of its own.
/// - `file` and `record` are valid indices of Catalog::files and Catalog::records.
/// - A pair of name and kind occurs once (`index` checks it). Tied tensors have one entry per name,
///   with the same pieces.
namespace acc::checkpoint {

/// Form in which the bytes of a piece lie in its file.
enum class Packing : std::uint8_t {
  raw,      ///< the elements themselves
  archive,  ///< a torch.save archive of one tensor, whose shape is the piece's (a DCP entry)
};

/// A box of a tensor, contiguous and row-major in one file.
struct StoredPiece {
  Box box;
  std::uint32_t file = 0;    ///< index in Catalog::files
  std::uint64_t offset = 0;  ///< of the first byte in the file
  std::uint64_t nbytes = 0;  ///< raw: size of the elements; archive: size of the whole archive
  Packing packing = Packing::raw;
  std::int32_t record = -1;  ///< raw: index in Catalog::records, which has its checksums; -1: none
  std::uint64_t mark = 0;    ///< archive: the mark that it must have (dcp::mark_of); 0: not known
};

/// Bytes of a file that were written together, and the checksums that cover them.
struct StoredRecord {
  std::string name;        ///< for messages: "data/0", a tensor's name
  std::uint32_t file = 0;  ///< index in Catalog::files
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;                 ///< of all bytes; 0: the writer stored none
  std::vector<std::uint32_t> blocks = {};  ///< of each torch::kBlock bytes; may be empty
};

using VisitPiece = std::function<void(const StoredPiece& piece)>;

/// Computes the pieces of tensors on request. A checkpoint of thousands of ranks has millions of
/// pieces, of which a reader needs few. Thread-safe.
class PieceRule {
 public:
  virtual ~PieceRule() = default;
  /// Visits the pieces of tensor number `tensor` that hold any of its elements [begin, end), in the
  /// order of their elements.
  virtual void for_each_piece(std::size_t tensor, std::int64_t begin, std::int64_t end,
                              const VisitPiece& visit) const = 0;
};

/// A stored tensor. Its pieces are in `pieces`, or are computed by `rule`; for_each_piece and
/// all_pieces hide the difference.
struct StoredTensor {
  /// Full name of the parameter or buffer, as exported: without the top key of a DCP folder.
  std::string name;
  /// "param" (also for buffers), a RuleState::key such as "exp_avg", "step", "group" (a setting of
  /// parameters, which TrainingState::groups has), or "value" (of unknown meaning).
  std::string kind = "param";
  std::string stored_name;  ///< name in the format: "optimizer.state.h.0.weight.exp_avg"
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<StoredPiece> pieces;  ///< empty if `rule` is set
  std::shared_ptr<const PieceRule> rule = nullptr;
  std::size_t number = 0;  ///< number of this tensor for `rule`
  /// Number that the file has in place of the name (parameter_names.hpp); empty: `name` is known.
  std::string number_only = {};
  /// In elements, of a tensor that is one raw piece in another order than row-major
  /// (channels_last); else empty.
  Shape strides = {};

  /// True unless it belongs to an optimizer. A tensor of unknown meaning is a weight, so that it is
  /// not lost.
  [[nodiscard]] bool is_weight() const noexcept { return kind == "param" || kind == "value"; }
  /// Visits the pieces that hold any of elements [begin, end).
  void for_each_piece(std::int64_t begin, std::int64_t end, const VisitPiece& visit) const;
  /// Returns all pieces. Expensive for a large checkpoint with a rule.
  [[nodiscard]] std::vector<StoredPiece> all_pieces() const;
};

struct Catalog {
  using Key = std::pair<std::string, std::string>;  ///< name, kind

  std::vector<InputPath> files;
  std::vector<StoredTensor> tensors;  ///< in the order of the format
  std::vector<StoredRecord> records;

  /// Adds a file, or finds it, and returns its number. `nbytes`: expected size; a file of another
  /// size is damaged.
  std::uint32_t file(const InputPath& path, std::optional<std::uint64_t> nbytes = std::nullopt);
  [[nodiscard]] std::optional<std::uint64_t> expected_nbytes(std::uint32_t file) const;
  /// Builds the index for `find` and `at`. To be called after the last tensor. Throws Unreadable
  /// if a pair of name and kind occurs twice.
  void index();
  [[nodiscard]] const StoredTensor* find(std::string_view name, std::string_view kind) const;
  /// Returns a tensor. Throws Error(config) with `where`, the name and the number of tensors if it
  /// does not exist.
  [[nodiscard]] const StoredTensor& at(std::string_view name, std::string_view kind,
                                       const std::string& where) const;

 private:
  std::map<Key, std::size_t> by_name_;
  std::map<std::string, std::uint32_t> by_path_;
  std::vector<std::optional<std::uint64_t>> expected_nbytes_;  ///< by file number
};

/// Finds the tensors of a catalog that are stored once under several names (tied weights), by the
/// place of their bytes.
class SharedBytes {
 public:
  /// Returns the tensor that was passed before with the same bytes. Null if there is none; then
  /// this tensor is remembered. It must outlive this object.
  const StoredTensor* other(const StoredTensor& tensor);

 private:
  std::multimap<std::pair<std::uint32_t, std::uint64_t>, const StoredTensor*> by_place_;
};

/// The settings of an optimizer's parameter group.
struct StoredGroup {
  std::map<std::string, double> hyper_parameters;  ///< booleans are 0 and 1; None is absent
  std::vector<std::string> parameters;             ///< full names, as far as they are known
  std::vector<std::string> numbers = {};      ///< what the file has in place of names; may be empty
  std::vector<std::string> param_names = {};  ///< torch's names of the same, if it has saved them
  /// Values that the program has added ("name"), by key: opcodes of a pickle that push them.
  std::map<std::string, std::string> others = {};
};

/// The state of a training run that is not stored in tensors.
struct TrainingState {
  std::optional<std::int64_t> step;  ///< optimizer steps done: of the parameter with the most
  /// Of the parameter with the fewest, because a parameter without a gradient is not updated; empty
  /// if the format has one number for all.
  std::optional<std::int64_t> fewest_steps = {};
  std::int64_t skipped_steps = 0;
  std::string optimizer;  ///< OptimizerRule::name; empty if the format does not say
  std::vector<StoredGroup> groups;
  std::map<std::string, double> loss_scaler;  ///< LossScaler::state(); empty if there is none
  std::set<std::string> buffers = {};         ///< names known to be buffers, not parameters
  /// Reason why the names of the optimizer's parameters are unknown; empty: they are known.
  std::string names_unknown = {};
  /// What the checkpoint has and its reader leaves out, such as values that are no tensors.
  std::vector<std::string> unread = {};

  /// Takes the number of updates of one parameter into account.
  void count_steps(std::int64_t of_parameter);
};

/// Origin of a checkpoint, for `inspect` and for messages.
struct Provenance {
  std::string format;  ///< "torch DCP", "safetensors", "torch.save", "DeepSpeed ZeRO 3", …
  std::string writer;  ///< "acclaunch 0.1.0", "torch", "DeepSpeed 0.19.8", or empty
  int world_size = 0;  ///< of the run that saved; 0: unknown
};

}  // namespace acc::checkpoint
