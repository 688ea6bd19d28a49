// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/torch/torch_file.hpp"

#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "pickle/reader.hpp"
#include "torch/tensor_value.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace acc::checkpoint::torch {
namespace {

/// Reads an archive through two windows of 4 KiB at its ends. Headers, pickle and directory of a
/// small archive lie there, so that two reads are enough. This matters because a DCP folder may
/// hold millions of archives.
class Windows {
 public:
  Windows(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes)
      : file_(file), offset_(offset), nbytes_(nbytes) {}

  // Reads that do not fit into a window go to the file directly.
  void read(std::uint64_t at, std::span<std::byte> out) {
    if (at > nbytes_ || out.size() > nbytes_ - at) {
      throw Error(Errc::internal, "a read outside of an archive");
    }
    if (at + out.size() > nbytes_ - std::min<std::uint64_t>(nbytes_, kWindow)) {
      from(tail_, nbytes_ - std::min<std::uint64_t>(nbytes_, kWindow), at, out);
    } else {
      from(head_, 0, at, out);
    }
  }

 private:
  static constexpr std::size_t kWindow = 4096;

  void from(std::vector<std::byte>& window, std::uint64_t begin, std::uint64_t at,
            std::span<std::byte> out) {
    if (at < begin || at + out.size() > begin + kWindow) {
      return file_.read(offset_ + at, out);
    }
    if (window.empty()) {
      window.resize(std::min<std::uint64_t>(kWindow, nbytes_ - begin));
      file_.read(offset_ + begin, window);
    }
    std::memcpy(out.data(), window.data() + (at - begin), out.size());
  }

  const InputFile& file_;
  std::uint64_t offset_, nbytes_;
  std::vector<std::byte> head_, tail_;
};

/// True for the legacy format of torch.save (before 1.6, without zip), which begins with the pickle
/// of a magic number.
bool is_unzipped(const InputFile& file, std::uint64_t offset, std::uint64_t nbytes) {
  constexpr std::string_view kMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  std::array<char, 2 + kMagic.size()> begin{};
  if (nbytes < begin.size()) {
    return false;
  }
  file.read(offset, std::as_writable_bytes(std::span(begin)));
  return begin[0] == '\x80' && std::string_view(begin.data() + 2, kMagic.size()) == kMagic;
}

std::vector<archive::Record> records_of(const InputFile& file, std::uint64_t offset,
                                        std::uint64_t nbytes, const archive::ReadAt& read,
                                        const std::string& where) {
  if (is_unzipped(file, offset, nbytes)) {
    throw Unreadable(where +
                     ": torch.save's older form without zip is not supported; load the file with "
                     "torch.load and save it again with torch.save");
  }
  return archive::read_records(read, nbytes, where);
}

}  // namespace

std::vector<archive::Record> read_directory(const InputFile& file, std::uint64_t offset,
                                            std::uint64_t nbytes, const std::string& where) {
  Windows windows(file, offset, nbytes);
  const archive::ReadAt read = [&](std::uint64_t at, std::span<std::byte> out) {
    windows.read(at, out);
  };
  return records_of(file, offset, nbytes, read, where);
}

TorchFile::TorchFile(const InputPath& path) : TorchFile(std::make_shared<InputFile>(path)) {}

TorchFile::TorchFile(std::shared_ptr<const InputFile> file)
    : TorchFile(file, 0, file->nbytes(), {}) {}

TorchFile::TorchFile(std::shared_ptr<const InputFile> file, std::uint64_t offset,
                     std::uint64_t nbytes, std::string what)
    : file_(std::move(file)), offset_(offset), nbytes_(nbytes), what_(std::move(what)) {
  if (offset > file_->nbytes() || nbytes > file_->nbytes() - offset) {
    fail("truncated: expected " + std::to_string(nbytes) + " bytes from byte " +
         std::to_string(offset) + ", found a file of " + std::to_string(file_->nbytes()));
  }
  Windows windows(*file_, offset_, nbytes_);
  const archive::ReadAt read = [&](std::uint64_t at, std::span<std::byte> out) {
    windows.read(at, out);
  };
  records_ = records_of(*file_, offset_, nbytes_, read, where());
  for (std::size_t i = 0; i < records_.size(); ++i) {
    by_name_.emplace(records_[i].name, i);
  }
  if (const archive::Record* order = record("byteorder")) {
    const std::vector<std::byte> name = payload(*order, read);
    if (std::string_view(reinterpret_cast<const char*>(name.data()), name.size()) != "little") {
      throw Unreadable(where() + ": its byte order is not little-endian");
    }
  }
  const archive::Record* data = record("data.pkl");
  if (data == nullptr) {
    fail("no record data.pkl, which every torch.save archive has");
  }
  values_ = pickle::read(payload(*data, read), where());
}

std::string TorchFile::where() const {
  return file_->path().string() + (what_.empty() ? "" : ", " + what_);
}

void TorchFile::fail(const std::string& what) const {
  throw Error(Errc::config, where() + ": " + what);
}

const archive::Record* TorchFile::record(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found != by_name_.end() ? &records_[found->second] : nullptr;
}

// A CRC of 0 means that the writer stored none (torch.serialization.set_crc32_options(False)).
std::vector<std::byte> TorchFile::payload(const archive::Record& record,
                                          const archive::ReadAt& read) const {
  std::vector<std::byte> bytes(record.nbytes);
  read(record.offset, bytes);
  if (record.crc32 != 0 && crc32(0, bytes) != record.crc32) {
    fail("damaged: the checksum of record " + record.name + " does not match its bytes");
  }
  return bytes;
}

// Reads our record of block checksums. Other writers have none.
std::vector<std::uint32_t> TorchFile::block_checksums(const archive::Record& storage,
                                                      std::string_view key) const {
  const archive::Record* sums = record(".acc/crc32/" + std::string(key));
  if (sums == nullptr) {
    return {};
  }
  const std::uint64_t blocks = storage.nbytes / kBlock + (storage.nbytes % kBlock != 0 ? 1 : 0);
  if (sums->nbytes != blocks * sizeof(std::uint32_t)) {
    fail("record " + sums->name + " has " + std::to_string(sums->nbytes) +
         " bytes, expected checksums of " + std::to_string(blocks) + " blocks");
  }
  const std::vector<std::byte> bytes = payload(
      *sums,
      [this](std::uint64_t at, std::span<std::byte> out) { file_->read(offset_ + at, out); });
  std::vector<std::uint32_t> found(blocks);
  std::memcpy(found.data(), bytes.data(), bytes.size());
  return found;
}

bool TorchFile::is_tensor(const pickle::Value& value) noexcept {
  return is_tensor_value(value);
}

// Offsets in the archive become offsets in the file.
TensorRef TorchFile::tensor(const pickle::Value& value) const {
  const TensorValue tensor = tensor_value(value, where());
  const archive::Record* storage = record("data/" + std::string(tensor.storage));
  if (storage == nullptr) {
    fail("no record data/" + std::string(tensor.storage));
  }
  if (tensor.offset > storage->nbytes || tensor.nbytes > storage->nbytes - tensor.offset) {
    fail("a tensor of shape " + to_string(tensor.shape) + " needs " +
         std::to_string(tensor.nbytes) + " bytes from byte " + std::to_string(tensor.offset) +
         " of record " + storage->name + ", which has " + std::to_string(storage->nbytes));
  }
  return {.dtype = tensor.dtype,
          .shape = tensor.shape,
          .bytes = {.offset = offset_ + storage->offset + tensor.offset,
                    .nbytes = tensor.nbytes,
                    .record_offset = offset_ + storage->offset,
                    .record_nbytes = storage->nbytes,
                    .record_crc32 = storage->crc32,
                    .blocks = block_checksums(*storage, tensor.storage)},
          .strides = tensor.strides};
}

TensorRef TorchFile::row_major_tensor(const pickle::Value& value) const {
  TensorRef found = tensor(value);
  if (!found.strides.empty()) {
    throw Unreadable(where() + ": a tensor of shape " + to_string(found.shape) + " has strides " +
                     to_string(found.strides) + ", expected row-major elements");
  }
  return found;
}

}  // namespace acc::checkpoint::torch
