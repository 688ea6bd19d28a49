// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/archive_builder.hpp"

#include <algorithm>
#include <cstring>

namespace acc::checkpoint::deepspeed {

namespace {

/// Size of the buffer through which elements pass from the reader to the archive.
constexpr std::int64_t kBufferNbytes = std::int64_t{4} << 20;

}  // namespace

// Storages are numbered in the order of their first push, as torch numbers them.
int ArchiveBuilder::push(const FlatParts& parts, Dtype dtype, const Shape& shape) {
  const int storage = static_cast<int>(storages_.size());
  storages_.push_back({.parts = parts, .dtype = dtype, .bytes = {}});
  push_again(storage, dtype, shape);
  return storage;
}

void ArchiveBuilder::push_again(int storage, Dtype dtype, const Shape& shape) {
  torch::push_tensor(writer_, {dtype, shape}, storage);
}

void ArchiveBuilder::push_scalar(float value) {
  Storage storage;
  storage.bytes.resize(sizeof(value));
  std::memcpy(storage.bytes.data(), &value, sizeof(value));
  storages_.push_back(std::move(storage));
  push_again(static_cast<int>(storages_.size()) - 1, Dtype::f32, {});
}

// Copies the parts of a storage to the sink, at most one buffer at a time. Zeros stand for padding.
void ArchiveBuilder::fill(const Storage& storage, const torch::Sink& sink) {
  if (!storage.bytes.empty()) {
    sink(storage.bytes);
    return;
  }
  const auto element = static_cast<std::int64_t>(size_of(storage.dtype));
  const std::int64_t step = kBufferNbytes / element;
  std::int64_t longest = 0;
  for (const FlatPart& part : storage.parts) {
    longest = std::max(longest, std::min(part.numel, step));
  }
  std::vector<std::byte> buffer(static_cast<std::size_t>(longest * element));
  for (const FlatPart& part : storage.parts) {
    for (std::int64_t done = 0; done < part.numel; done += step) {
      const std::int64_t numel = std::min(step, part.numel - done);
      const auto bytes = std::span(buffer).first(static_cast<std::size_t>(numel * element));
      if (part.tensor == nullptr) {
        std::ranges::fill(bytes, std::byte{0});
      } else {
        reader_.read(*part.tensor, part.begin + done, numel, storage.dtype, bytes.data());
      }
      sink(bytes);
    }
  }
}

// Storages are written in the order of their numbers, which the pickle has already named.
void ArchiveBuilder::write(const std::filesystem::path& path) {
  OutputFile out(path);
  torch::TorchFileWriter file(out, writer_.finish());
  for (const Storage& storage : storages_) {
    const std::uint64_t nbytes =
        storage.bytes.empty()
            ? static_cast<std::uint64_t>(total_numel(storage.parts)) * size_of(storage.dtype)
            : storage.bytes.size();
    file.storage(nbytes, [&](const torch::Sink& sink) { fill(storage, sink); });
  }
  file.finish();
  out.close();
}

}  // namespace acc::checkpoint::deepspeed
