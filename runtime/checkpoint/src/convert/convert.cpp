// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/convert.hpp"

#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/convert/verify.hpp"
#include "convert/outputs.hpp"

#include <algorithm>

namespace acc::checkpoint::conversion {

// The checksums in the output were computed from the bytes that were read and converted. Reading
// all of the output and comparing them detects what the disk or the file system damaged on the way.
std::size_t check_written(const Stored& written, const std::vector<OutputTensor>& tensors,
                          const Options& options) {
  for (const OutputTensor& tensor : tensors) {
    const StoredTensor* const there = written.catalog.find(tensor.name, tensor.from->kind);
    if (there == nullptr || there->shape != tensor.from->shape || there->dtype != tensor.dtype) {
      throw not_as_written(written.path, tensor.name);
    }
  }
  check_written_bytes(written, options);
  return tensors.size();
}

void check_written_bytes(const Stored& written, const Options& options) {
  Verification found;
  verify_tensors(written, options.num_threads, options.progress, found);
  if (!found.damaged.empty()) {
    throw not_as_written(found.damaged.front().file, found.damaged.front().tensor);
  }
}

// The buffer belongs to the thread and is reused for all its tiles.
void stream(TensorReader& reader, const StoredTensor& tensor, Range range, Dtype dtype,
            ProgressMeter& meter, const torch::Sink& sink) {
  std::vector<Tile> tiles;
  cut_tiles(tensor, 0, range, kTileBytes, tiles);
  thread_local std::vector<std::byte> buffer;
  for (const Tile& tile : tiles) {
    const std::size_t nbytes = static_cast<std::size_t>(tile.numel) * size_of(dtype);
    buffer.resize(std::max(buffer.size(), nbytes));
    reader.read(tensor, tile.begin, tile.numel, dtype, buffer.data());
    sink(std::span(buffer).first(nbytes));
    meter.add(nbytes);
  }
}

void check_sources(const std::vector<const StoredTensor*>& tensors, TensorReader& reader,
                   const Options& options) {
  std::vector<Part> parts;
  std::uint64_t total = 0;
  for (const StoredTensor* const tensor : tensors) {
    if (tensor == nullptr || tensor->rule) {  // with a rule: ours, with block checksums
      continue;
    }
    const bool is_long = std::ranges::any_of(tensor->pieces, [&](const StoredPiece& piece) {
      return Part{tensor, piece}.nbytes() > kTileBytes;
    });
    if (is_long && !reader.checks_parts(*tensor)) {
      for (const StoredPiece& piece : tensor->pieces) {
        total += parts.emplace_back(Part{tensor, piece}).nbytes();
      }
    }
  }
  ProgressMeter meter(options.progress, Component::launcher, "checking what is read,", total);
  for_each_parallel(parts.size(), options.num_threads, [&](std::size_t i, std::size_t) {
    reader.verify(*parts[i].tensor, parts[i].piece);
    meter.add(parts[i].nbytes());
  });
}

Error not_as_written(const std::filesystem::path& path, const std::string& tensor) {
  return {Errc::config, path.string() + ": tensor " + tensor +
                            " does not read back as it was written; nothing was kept"};
}

// Each writer opens its own reader of the catalog, checks its sources, reads its output back, and
// gives it its name if the sources are unchanged.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options) {
  Result result = read_unchanged(from.path, [&] {
    switch (options.to) {
      case Target::safetensors: return write_safetensors(from, out, options);
      case Target::bin: return write_bin(from, out, options);
      case Target::dcp: return write_dcp(from, out, options);
      case Target::deepspeed: break;
    }
    return write_deepspeed(from, out, options);
  });
  if (!from.training.unread.empty()) {
    result.left_out.push_back(from.training.unread);
  }
  return result;
}

}  // namespace acc::checkpoint::conversion
