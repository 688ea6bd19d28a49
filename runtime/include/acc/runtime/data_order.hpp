// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace acc {

namespace detail {
class DataOrderState;
}  // namespace detail

/// What becomes of the samples at the end of an epoch that do not fill a batch.
enum class LastBatch : std::uint8_t {
  partial,     ///< they are a smaller batch
  next_epoch,  ///< the batch is filled with the first samples of the next epoch
  drop,        ///< they are left out (drop_last of torch's DistributedSampler)
  pad,  ///< the batch is filled with the first samples of the same epoch, which are then used
        ///< twice (torch's DistributedSampler without drop_last)
};

/// A data set, or a stream whose length is not known.
struct DataSource {
  static constexpr std::int64_t kUnknown = -1;
  std::int64_t samples = kUnknown;  ///< kUnknown: a stream, whose samples come in its own order
  double weight = 1.0;              ///< share in a mixture, against the sum of all weights
};

struct DataOptions {
  /// One source, or the sources of a mixture. A mixture has no end: each source begins its next
  /// epoch for itself.
  std::vector<DataSource> sources = {};
  std::uint64_t seed = 0;
  bool shuffle = true;
  LastBatch last_batch = LastBatch::partial;  ///< of one source with a known number of samples
  /// Name in checkpoints and records, for a program with several orders: letters, digits, `_`, `-`.
  std::string name = {};
};

/// A position in the order of all samples, which all ranks have in common.
struct DataPosition {
  std::int64_t epoch = 0;   ///< of a stream: how often the program has begun it again; mixture: 0
  std::int64_t offset = 0;  ///< samples of the epoch that come before it; with `pack`: documents
  std::int64_t token = 0;   ///< with `pack`: tokens of the next document that come before it

  bool operator==(const DataPosition&) const = default;
};

struct DataSample {
  std::int64_t source = 0;
  std::int64_t epoch = 0;  ///< of its source
  std::int64_t index = 0;  ///< in its source

  bool operator==(const DataSample&) const = default;
};

/// Samples that one rank uses of a batch.
struct DataShare {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns the part that number `part` of `parts` has of `size` samples. Parts are consecutive and
/// differ by at most one sample; with more parts than samples some are empty.
constexpr DataShare share_of(std::int64_t size, std::int64_t part, std::int64_t parts) noexcept {
  const std::int64_t least = size / parts;
  const std::int64_t longer = size % parts;
  return {.first = part * least + (part < longer ? part : longer),
          .count = least + (part < longer ? 1 : 0)};
}

/// The samples that all ranks together use at once.
struct DataBatch {
  DataPosition first = {};
  std::int64_t size = 0;
  std::int64_t padding = 0;  ///< samples at its end that are used a second time (LastBatch::pad)
  DataPosition next = {};    ///< position after it
};

/// Tokens [offset, offset + length) of a document.
struct DataPiece {
  std::int64_t epoch = 0;
  std::int64_t document = 0;
  std::int64_t offset = 0;
  std::int64_t length = 0;
  std::int64_t total = 0;  ///< tokens of the document

  bool operator==(const DataPiece&) const = default;
};

/// Sequences of a fixed number of tokens that all ranks together use at once. The pieces of a
/// sequence follow each other: a piece is where a document begins, ends or is cut.
struct PackedBatch {
  DataPosition first = {};
  std::int64_t size = 0;  ///< number of sequences
  DataPosition next = {};
  std::vector<std::vector<DataPiece>> sequences = {};  ///< [size]
};

/// The order in which a training uses its samples: a pure function of seed, epoch and position, and
/// of nothing else. It does not depend on the number of ranks, so a training that is restarted or
/// resized goes on with the samples that it has not used (docs/data.md). Needs no table: memory and
/// time per sample do not depend on the number of samples. All ranks make the same calls; none is
/// collective. Not thread-safe. Movable.
class ACC_API DataOrder {
 public:
  /// Throws Error(invalid_argument) for options that contradict each other, for a number of samples
  /// below 1, and for a weight that is not positive or is less than 1/65536 of the sum.
  explicit DataOrder(DataOptions options);
  /// Does the same, and records what this rank uses if the launcher was told to (--data_record).
  /// runtime: not needed later. Throws Error(config) if the record cannot be created.
  DataOrder(const Runtime& runtime, DataOptions options);
  /// The same for a program without a runtime, by the variables of the launcher.
  static DataOrder from_environment(DataOptions options);
  DataOrder(DataOrder&&) noexcept;
  DataOrder& operator=(DataOrder&&) noexcept;
  ~DataOrder();

  /// The options with which it was made.
  [[nodiscard]] const DataOptions& options() const;
  /// Number of samples of an epoch; DataSource::kUnknown for a stream and for a mixture.
  [[nodiscard]] std::int64_t samples_per_epoch() const;

  // --- Pure functions of a position. They throw Error(invalid_argument) for a position outside of
  // the epoch and for a size below 1.

  /// Returns the batch of `size` samples at a position. At the end of an epoch it is as LastBatch
  /// says; with LastBatch::drop it may begin in the next epoch.
  [[nodiscard]] DataBatch batch(DataPosition at, std::int64_t size) const;
  /// Returns the number of batches of `size` samples that begin between a position and the end of
  /// its epoch. Throws Error(invalid_argument) for a stream and for a mixture.
  [[nodiscard]] std::int64_t batches(DataPosition at, std::int64_t size) const;
  /// Writes the samples of a share of a batch. out: [share.count].
  void samples(const DataBatch& batch, DataShare share, std::span<DataSample> out) const;
  [[nodiscard]] std::vector<DataSample> samples(const DataBatch& batch, DataShare share) const;
  /// Returns `count` sequences of `tokens` tokens at a position: the documents in their order, one
  /// after the other, cut where a sequence is full. lengths: tokens of each document, at least 1,
  /// [samples of the source]. At the end of an epoch: LastBatch::partial gives a shorter last
  /// sequence and fewer sequences, next_epoch goes on with its documents, drop leaves out what does
  /// not fill `count` sequences. Throws Error(not_supported) for LastBatch::pad, and
  /// Error(invalid_argument) unless there is one source with a known number of documents.
  [[nodiscard]] PackedBatch pack(DataPosition at, std::span<const std::int64_t> lengths,
                                 std::int64_t tokens, std::int64_t count) const;

  // --- The position of the training.

  /// Position after the samples that the training has used.
  [[nodiscard]] DataPosition position() const;
  [[nodiscard]] DataBatch next(std::int64_t size) const { return batch(position(), size); }
  /// Moves the position behind a batch that the training has used. used: this rank's samples of it,
  /// for the record; hashes: of their contents, [used.size()] or none. Throws
  /// Error(invalid_argument) unless the batch begins at the position.
  void advance(const DataBatch& batch, std::span<const DataSample> used = {},
               std::span<const std::uint64_t> hashes = {});
  void advance(const PackedBatch& batch, std::span<const DataPiece> used = {});
  /// Moves to the begin of the next epoch, at the end of a stream.
  void end_epoch();
  /// Sets the position, of a checkpoint that has none of this order.
  void seek(DataPosition to);

  /// Returns the position for a checkpoint (SavedState::program), with what identifies the order.
  /// What was recorded is on disk when it returns.
  [[nodiscard]] ProgramState state() const;
  /// Goes on at the position of a checkpoint. Returns false, and changes nothing, if the checkpoint
  /// has no position of an order with this name. Throws Error(config) if it was of another order:
  /// another seed, number of samples or weight, or not shuffled alike.
  [[nodiscard]] bool load(const ProgramState& state);

 private:
  std::unique_ptr<detail::DataOrderState> state_;
};

}  // namespace acc
