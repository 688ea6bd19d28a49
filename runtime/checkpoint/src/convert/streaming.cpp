// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/convert/verify.hpp"
#include "convert/outputs.hpp"
#include "convert/tiles.hpp"

#include <algorithm>

namespace acc::checkpoint::conversion {

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

}  // namespace acc::checkpoint::conversion
