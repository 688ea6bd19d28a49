// SPDX-License-Identifier: Apache-2.0
#include "catalog/piece_source.hpp"

#include "acc/checkpoint/files/errors.hpp"

#include <string>

namespace acc::checkpoint {
namespace {

// Bounds of the caches. Files are closed oldest first. Archives are all dropped at once, because
// their order of use is unknown.
constexpr std::size_t kMaxOpenFiles = 256;
constexpr std::size_t kMaxArchives = 65'536;

// Checks the numbers of a source, which come from files, before anything is computed from them.
void check_extent(const PieceSource& source, const StoredTensor& tensor, const StoredPiece& piece) {
  const std::uint64_t expected =
      static_cast<std::uint64_t>(stored_numel(piece.box.sizes, source.strides).value_or(0)) *
      size_of(tensor.dtype);
  if (source.nbytes != expected) {
    fail_tensor(source.file->path(), tensor.name,
                "box " + to_string(piece.box) + " needs " + std::to_string(expected) +
                    " bytes, found " + std::to_string(source.nbytes));
  }
  std::uint64_t end = 0;
  if (__builtin_add_overflow(source.offset, source.nbytes, &end) || end > source.file->nbytes()) {
    fail_tensor(source.file->path(), tensor.name,
                "truncated: expected " + std::to_string(source.nbytes) + " bytes at byte " +
                    std::to_string(source.offset) + ", the file has " +
                    std::to_string(source.file->nbytes()));
  }
  if (!source.has_record) {
    return;
  }
  const std::uint64_t blocks =
      source.record_nbytes / torch::kBlock + (source.record_nbytes % torch::kBlock != 0 ? 1 : 0);
  const std::uint64_t before = source.offset - source.record_offset;
  const bool inside = source.offset >= source.record_offset && before <= source.record_nbytes &&
                      source.record_nbytes - before >= source.nbytes &&
                      source.record_nbytes <= source.file->nbytes() - source.record_offset;
  if (!inside || before % size_of(tensor.dtype) != 0 ||
      (!source.blocks.empty() && source.blocks.size() != blocks)) {
    fail_tensor(source.file->path(), tensor.name, "does not fit the record that contains it");
  }
}

}  // namespace

// Files are opened without the lock, because opening may be slow on a network file system. If two
// threads open the same file, the second one's handle is dropped.
std::shared_ptr<const InputFile> PieceSources::file(std::uint32_t index) {
  {
    const std::lock_guard lock(mutex_);
    if (files_.at(index)) {
      return files_[index];
    }
  }
  auto opened = std::make_shared<const InputFile>(catalog_.files[index]);
  if (const auto expected = catalog_.expected_nbytes(index);
      expected && opened->nbytes() != *expected) {
    throw Error(Errc::config, opened->path().string() + ": has " +
                                  std::to_string(opened->nbytes()) + " bytes, " +
                                  std::to_string(*expected) + " expected");
  }
  const std::lock_guard lock(mutex_);
  if (!files_[index]) {
    if (opened_.size() == kMaxOpenFiles) {
      files_[opened_.front()].reset();
      opened_.pop_front();
    }
    files_[index] = std::move(opened);
    opened_.push_back(index);
  }
  return files_[index];
}

// Returns the tensor of a DCP entry. Opening it reads the ends of its archive; the result is
// cached, because a tensor's pieces are usually read several times.
std::shared_ptr<const torch::TensorRef> PieceSources::archived(
    const StoredTensor& tensor, const StoredPiece& piece,
    const std::shared_ptr<const InputFile>& file) {
  const Place place(piece.file, piece.offset);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = archives_.find(place); found != archives_.end()) {
      return found->second;
    }
  }
  const torch::TorchFile archive(file, piece.offset, piece.nbytes, tensor.stored_name);
  archive.check_mark(piece.mark);
  auto stored = std::make_shared<const torch::TensorRef>(archive.tensor(archive.root()));
  const std::lock_guard lock(mutex_);
  if (archives_.size() >= kMaxArchives) {
    archives_.clear();
  }
  archives_.emplace(place, stored);
  return stored;
}

PieceSource PieceSources::find(const StoredTensor& tensor, const StoredPiece& piece) {
  PieceSource source;
  try {
    source.file = file(piece.file);
  } catch (const Error& error) {
    throw Error(error.code(),
                std::string(error.what()) + ", which has elements of tensor '" + tensor.name + "'");
  }
  if (piece.packing == Packing::archive) {
    const auto stored = archived(tensor, piece, source.file);
    // The archive must hold exactly the box that the metadata announces.
    if (stored->dtype != tensor.dtype || stored->shape != piece.box.sizes) {
      fail_tensor(source.file->path(), tensor.name,
                  "expected " + std::string(torch_name(tensor.dtype)) + " of shape " +
                      to_string(piece.box.sizes) + " at byte " + std::to_string(piece.offset) +
                      ", found " + std::string(torch_name(stored->dtype)) + " of shape " +
                      to_string(stored->shape));
    }
    source.offset = stored->bytes.offset;
    source.nbytes = stored->bytes.nbytes;
    source.has_record = stored->bytes.record_crc32 != 0 || !stored->bytes.blocks.empty();
    source.record_offset = stored->bytes.record_offset;
    source.record_nbytes = stored->bytes.record_nbytes;
    source.record_crc32 = stored->bytes.record_crc32;
    source.blocks = stored->bytes.blocks;
    source.strides = stored->strides;
    source.keeps = stored;
  } else {
    source.offset = piece.offset;
    source.nbytes = piece.nbytes;
    source.strides = tensor.strides;
    if (piece.record >= 0) {
      const StoredRecord& record = catalog_.records.at(static_cast<std::size_t>(piece.record));
      source.has_record = record.crc32 != 0 || !record.blocks.empty();
      source.record_offset = record.offset;
      source.record_nbytes = record.nbytes;
      source.record_crc32 = record.crc32;
      source.blocks = record.blocks;
    }
  }
  check_extent(source, tensor, piece);
  return source;
}

}  // namespace acc::checkpoint
