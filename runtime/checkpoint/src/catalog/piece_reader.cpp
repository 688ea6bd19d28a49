// SPDX-License-Identifier: Apache-2.0
#include "catalog/piece_reader.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::checkpoint {
namespace {

// Runs of at least this many bytes are read directly, if there is no checksum to compute. Shorter
// ones are read through the scratch tile, which saves system calls.
constexpr std::uint64_t kDirect = 8 * 1024;

// Bytes that are read and then checked at a time. Source and destination together fit a
// second-level cache.
constexpr std::uint64_t kStep = 64 * 1024;

}  // namespace

Scratch::Tile Scratch::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Tile tile = std::move(free_.back());
      free_.pop_back();
      return tile;
    }
  }
  return std::make_unique_for_overwrite<std::byte[]>(torch::kBlock);
}

void Scratch::give_back(Tile tile) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(tile));
}

PieceReader::PieceReader(PieceSource source, const StoredTensor& tensor, const StoredPiece& piece,
                         bool all, Scratch& scratch)
    : source_(std::move(source)),
      tensor_(tensor),
      piece_(piece),
      scratch_(scratch),
      element_(size_of(tensor.dtype)) {
  // A checksum per block allows checking any part. A checksum of the whole record can be checked
  // only if all of the record is read in order.
  if (!source_.has_record) {
    source_.record_offset = source_.offset;
    source_.record_nbytes = source_.nbytes;
  } else if (!source_.blocks.empty() || source_.record_nbytes <= torch::kBlock) {
    check_ = Check::blocks;
  } else if (all && source_.nbytes == source_.record_nbytes) {
    check_ = Check::whole;
  }
}

PieceReader::~PieceReader() {
  if (tile_) {
    scratch_.give_back(std::move(tile_));
  }
}

// Tiles are the checksum blocks of the record, so they are counted from its beginning.
PieceReader::Range PieceReader::tile_at(std::uint64_t byte) const noexcept {
  const std::uint64_t in_record = byte - source_.record_offset;
  const std::uint64_t begin = in_record - in_record % torch::kBlock;
  const std::uint64_t end = std::min(begin + torch::kBlock, source_.record_nbytes);
  return {source_.record_offset + begin, source_.record_offset + end};
}

void PieceReader::damaged(Range range, std::uint32_t expected, std::uint32_t found) const {
  // Reports the part of the damaged range that lies in the piece. The record may hold more. Bytes
  // of a strided piece belong to elements anywhere in it.
  const std::uint64_t begin = std::max(range.begin, source_.offset) - source_.offset;
  const std::uint64_t end =
      std::min(range.end, source_.offset + source_.nbytes) - source_.offset - 1;
  const auto in_tensor = [&](std::uint64_t byte) {
    return element_in_tensor(tensor_.shape, piece_.box, static_cast<std::int64_t>(byte / element_));
  };
  const std::int64_t first = source_.strides.empty() ? in_tensor(begin) : in_tensor(0);
  const std::int64_t last = source_.strides.empty() ? in_tensor(end)
                                                    : element_in_tensor(tensor_.shape, piece_.box,
                                                                        piece_.box.numel() - 1);
  throw Error(Errc::config,
              fmt::format("{}: tensor '{}'{}, elements {} to {}: damaged: checksum expected "
                          "{:08x}, found {:08x}",
                          source_.file->path().string(), tensor_.name,
                          tensor_.kind == "param" ? "" : " (" + tensor_.kind + ")", first, last + 1,
                          expected, found));
}

std::uint32_t PieceReader::expected_at(Range tile) const noexcept {
  return source_.blocks.empty()
             ? source_.record_crc32
             : source_.blocks[(tile.begin - source_.record_offset) / torch::kBlock];
}

void PieceReader::read_tile(Range tile, std::byte* to) {
  if (check_ == Check::none) {
    source_.file->read(tile.begin, {to, tile.nbytes()});
    return;
  }
  // The bytes are checked step by step, while they are in the cache. With Check::whole the CRC runs
  // on over all tiles, and `finish` compares it.
  std::uint32_t crc = check_ == Check::whole ? whole_crc32_ : 0;
  for (std::uint64_t at = 0; at < tile.nbytes(); at += kStep) {
    const std::span<std::byte> step(to + at, std::min(kStep, tile.nbytes() - at));
    source_.file->read(tile.begin + at, step);
    crc = crc32(crc, step);
  }
  if (check_ == Check::whole) {
    whole_crc32_ = crc;
  } else if (crc != expected_at(tile)) {
    damaged(tile, expected_at(tile), crc);
  }
}

void PieceReader::finish() const {
  if (check_ == Check::whole && whole_crc32_ != source_.record_crc32) {
    damaged({source_.offset, source_.offset + source_.nbytes}, source_.record_crc32, whole_crc32_);
  }
}

// Makes the scratch tile contain `wanted`, which lies within one tile.
void PieceReader::fill_scratch(Range wanted) {
  if (tile_ && wanted.begin >= in_tile_.begin && wanted.end <= in_tile_.end) {
    return;
  }
  if (!tile_) {
    tile_ = scratch_.take();
  }
  Range range = tile_at(wanted.begin);
  if (check_ == Check::none) {  // runs rise, so bytes before `wanted` are not needed again
    range = {wanted.begin, std::min(range.end, source_.offset + source_.nbytes)};
  }
  in_tile_ = {};
  read_tile(range, tile_.get());
  in_tile_ = range;
}

void PieceReader::read(std::int64_t first, std::int64_t numel, Dtype dtype, std::byte* out) {
  Range left = {source_.offset + static_cast<std::uint64_t>(first) * element_, 0};
  left.end = left.begin + static_cast<std::uint64_t>(numel) * element_;
  const bool same = dtype == tensor_.dtype;
  // A tile that is wanted whole and without conversion is read straight into `out`. With a checksum
  // it must be a whole tile, because only whole blocks can be checked.
  while (left.begin < left.end) {
    const Range tile = tile_at(left.begin);
    const Range part = {left.begin, std::min(left.end, tile.end)};
    const bool direct =
        same && (check_ == Check::none ? part.nbytes() >= kDirect
                                       : part.begin == tile.begin && part.end == tile.end);
    if (direct) {
      read_tile(part, out);
    } else {
      fill_scratch(part);
      convert(tile_.get() + (part.begin - in_tile_.begin), tensor_.dtype, out, dtype,
              part.nbytes() / element_);
    }
    out += part.nbytes() / element_ * size_of(dtype);
    left.begin = part.end;
  }
}

bool PieceReader::verify() {
  // Large records of other writers have one checksum. It can only be checked over all of the
  // record.
  Range range = {source_.offset, source_.offset + source_.nbytes};
  if (source_.has_record && check_ == Check::none) {
    check_ = Check::whole;
    range = {source_.record_offset, source_.record_offset + source_.record_nbytes};
  }
  while (range.begin < range.end) {
    const std::uint64_t end = std::min(tile_at(range.begin).end, range.end);
    fill_scratch({range.begin, end});
    range.begin = end;
  }
  finish();
  return source_.has_record;
}

}  // namespace acc::checkpoint
