// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace acc::checkpoint::torch {
namespace {

/// Records with fixed content, in torch's order.
struct Constant {
  const char* name;
  std::string_view payload;
};
constexpr auto kHead = std::to_array<Constant>(
    {{".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}});
constexpr Constant kVersion{"version", "3\n"};
constexpr const char* kSerializationId = ".data/serialization_id";
constexpr std::size_t kSerializationIdNbytes = 40;

std::string storage_name(int storage) {
  return "data/" + std::to_string(storage);
}
std::string sums_name(int storage) {
  return ".acc/crc32/" + std::to_string(storage);
}

std::uint64_t blocks_of(std::uint64_t nbytes) {
  return (nbytes + kBlock - 1) / kBlock;
}

/// Returns 40 decimal digits that identify the archive, made from names and checksums as torch's
/// are (with another hash function). A mark takes the place of the names, which our archives of one
/// form have in common.
std::string serialization_id(std::span<const archive::Record> records, std::uint64_t mark) {
  const auto fold = [](std::uint64_t into, std::uint64_t value) {
    return (into ^ value) * 0x9e3779b97f4a7c15 + (into >> 29);
  };
  std::uint64_t names = 0, sums = 0;
  for (const archive::Record& record : records) {
    for (const char c : record.name) {
      names = fold(names, static_cast<unsigned char>(c));
    }
    sums = fold(fold(sums, record.crc32), record.nbytes);
  }
  std::array<char, kSerializationIdNbytes + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%020llu%020llu",
                static_cast<unsigned long long>(mark == 0 ? names : mark),
                static_cast<unsigned long long>(sums));
  return {digits.data(), kSerializationIdNbytes};
}

}  // namespace

TorchFileWriter::TorchFileWriter(OutputFile& out, std::string data_pkl) : writer_(out) {
  writer_.add("data.pkl", data_pkl);
  for (const Constant& record : kHead) {
    writer_.add(record.name, record.payload);
  }
}

void TorchFileWriter::storage(std::uint64_t nbytes, const Fill& fill) {
  blocks_.clear();
  writer_.begin(storage_name(storages_), nbytes);
  fill([this](std::span<const std::byte> bytes) { append(bytes); });
  writer_.end();
  if (block_nbytes_ != 0) {
    blocks_.push_back(block_crc_);
  }
  block_nbytes_ = 0;
  block_crc_ = 0;
  if (nbytes > kBlock) {
    writer_.add(sums_name(storages_), std::as_bytes(std::span(blocks_)));
  }
  ++storages_;
}

/// Appends tile by tile. The bytes are still in the processor's cache when the checksum follows the
/// copy to the page cache.
void TorchFileWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto tile = bytes.first(std::min(bytes.size(), kBlock - block_nbytes_));
    const std::uint32_t crc = writer_.append(tile);
    block_crc_ = block_nbytes_ == 0 ? crc : crc32_combine(block_crc_, crc, tile.size());
    block_nbytes_ += tile.size();
    if (block_nbytes_ == kBlock) {
      blocks_.push_back(block_crc_);
      block_nbytes_ = 0;
    }
    bytes = bytes.subspan(tile.size());
  }
}

// torch's order: the version and the serialization id follow the storages.
void TorchFileWriter::finish(std::uint64_t mark) {
  writer_.add(kVersion.name, kVersion.payload);
  writer_.add(kSerializationId, serialization_id(writer_.records(), mark));
  writer_.finish();
}

// The directory has the checksum of the id, so that nothing more is read.
void TorchFile::check_mark(std::uint64_t mark) const {
  if (mark == 0) {
    return;
  }
  const std::string id = serialization_id(std::span(records_).first(records_.size() - 1), mark);
  if (records_.back().name != kSerializationId ||
      records_.back().crc32 != crc32(0, std::as_bytes(std::span(id)))) {
    fail(
        "is not what this save wrote here: the file is damaged, or of another rank, step or "
        "checkpoint");
  }
}

archive::Layout archive_layout(std::uint64_t data_pkl_nbytes,
                               std::span<const std::uint64_t> storage_nbytes) {
  std::vector<archive::RecordSize> records{{"data.pkl", data_pkl_nbytes}};
  for (const Constant& record : kHead) {
    records.push_back({record.name, record.payload.size()});
  }
  std::vector<std::size_t> storages;
  for (std::size_t i = 0; i < storage_nbytes.size(); ++i) {
    storages.push_back(records.size());
    records.push_back({storage_name(static_cast<int>(i)), storage_nbytes[i]});
    if (storage_nbytes[i] > kBlock) {
      records.push_back({sums_name(static_cast<int>(i)), 4 * blocks_of(storage_nbytes[i])});
    }
  }
  records.push_back({kVersion.name, kVersion.payload.size()});
  records.push_back({kSerializationId, kSerializationIdNbytes});
  const archive::Layout all = archive::lay_out(records);
  archive::Layout layout{.offsets = {}, .nbytes = all.nbytes};
  // Returns only the offsets of storages; the records of checksums shift them, too.
  for (const std::size_t i : storages) {
    layout.offsets.push_back(all.offsets[i]);
  }
  return layout;
}

// Emits the opcodes of torch's own _rebuild_tensor_v2 pickle. Dtypes without a storage class are
// emitted as v3 with an UntypedStorage, whose size counts bytes instead of elements.
void push_tensor(pickle::Writer& writer, const TensorSpec& tensor, int storage) {
  const auto storage_class = torch_storage(tensor.dtype);
  const std::int64_t numel = numel_of(tensor.shape);
  writer.global("torch._utils", storage_class ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  writer.begin_tuple().begin_tuple().text("storage");
  if (storage_class) {
    writer.global("torch", *storage_class);
  } else {
    writer.global("torch.storage", "UntypedStorage");
  }
  writer.text(std::to_string(storage)).text("cpu");
  writer.integer(storage_class ? numel : numel * static_cast<std::int64_t>(size_of(tensor.dtype)));
  writer.end_tuple().persistent().integer(0).begin_tuple();
  for (const std::int64_t extent : tensor.shape) {
    writer.integer(extent);
  }
  writer.end_tuple().begin_tuple();
  Shape strides(tensor.shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(tensor.shape[d], 1);
  }
  for (const std::int64_t stride : strides) {
    writer.integer(stride);
  }
  writer.end_tuple().boolean(false).begin_ordered_dict().end_ordered_dict();
  if (!storage_class) {
    writer.global("torch", torch_name(tensor.dtype));
  }
  writer.end_tuple().reduce();
}

std::string tensor_pickle(const TensorSpec& tensor) {
  pickle::Writer writer;
  push_tensor(writer, tensor, 0);
  return writer.finish();
}

}  // namespace acc::checkpoint::torch
