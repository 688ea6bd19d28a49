// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace acc::checkpoint {

/// Place of a piece's elements, and the checksums that cover them.
struct PieceSource {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;  ///< offset of the elements in the file, in bytes
  std::uint64_t nbytes = 0;  ///< from the first element to the end of the last one
  Shape strides;             ///< in elements; empty: row-major
  bool has_record = false;   ///< false: no checksums are known, and the fields below are unused
  std::uint64_t record_offset = 0;
  std::uint64_t record_nbytes = 0;
  std::uint32_t record_crc32 = 0;
  std::span<const std::uint32_t> blocks;  ///< checksums of the record's blocks; may be empty
  std::shared_ptr<const void> keeps;      ///< owner of the memory of `blocks`
};

/// Finds the sources of pieces. Keeps a bounded number of opened files and of archives whose
/// directory was read. Thread-safe.
class PieceSources {
 public:
  /// The catalog must outlive this object.
  explicit PieceSources(const Catalog& catalog) : catalog_(catalog), files_(catalog.files.size()) {}

  /// Throws Error(config) with the file and the tensor if the file is missing or too short, or if
  /// the archive holds something else.
  PieceSource find(const StoredTensor& tensor, const StoredPiece& piece);

 private:
  std::shared_ptr<const InputFile> file(std::uint32_t index);
  std::shared_ptr<const torch::TensorRef> archived(const StoredTensor& tensor,
                                                   const StoredPiece& piece,
                                                   const std::shared_ptr<const InputFile>& file);

  const Catalog& catalog_;
  std::mutex mutex_;  // guards the members below
  std::vector<std::shared_ptr<const InputFile>> files_;
  std::deque<std::uint32_t> opened_;                      ///< oldest first
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< file, offset
  std::map<Place, std::shared_ptr<const torch::TensorRef>> archives_;
};

}  // namespace acc::checkpoint
