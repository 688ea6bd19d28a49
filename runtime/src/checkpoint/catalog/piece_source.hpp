#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/files/input_file.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace acc::checkpoint {

/// Where a piece's elements lie, and by what they are checked.
struct PieceSource {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;  ///< of the elements, bytes in the file
  std::uint64_t nbytes = 0;
  bool has_record = false;  ///< else nothing of what follows is known
  std::uint64_t record_offset = 0;
  std::uint64_t record_nbytes = 0;
  std::uint32_t record_crc32 = 0;
  std::span<const std::uint32_t> blocks;  ///< of the record; may be empty
  std::shared_ptr<const void> keeps;      ///< whatever `blocks` lie in
};

/// Finds pieces' sources. Remembers a bounded number of opened files and of archives that it looked
/// into. Any thread.
class PieceSources {
 public:
  /// `catalog` outlives it.
  explicit PieceSources(const Catalog& catalog) : catalog_(catalog), files_(catalog.files.size()) {}

  /// Throws Error(config) that names file and tensor: not there, too short, an archive of something
  /// else.
  PieceSource find(const StoredTensor& tensor, const StoredPiece& piece);

 private:
  std::shared_ptr<const InputFile> file(std::uint32_t index);
  std::shared_ptr<const torch::TensorRef> archived(const StoredTensor& tensor,
                                                   const StoredPiece& piece,
                                                   const std::shared_ptr<const InputFile>& file);

  const Catalog& catalog_;
  std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<const InputFile>> files_;
  std::deque<std::uint32_t> opened_;                      ///< oldest first
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< file, offset
  std::map<Place, std::shared_ptr<const torch::TensorRef>> archives_;
};

}  // namespace acc::checkpoint
