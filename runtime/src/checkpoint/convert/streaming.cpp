#include "checkpoint/convert/outputs.hpp"
#include "checkpoint/convert/parallel.hpp"
#include "checkpoint/convert/tiles.hpp"
#include "checkpoint/convert/verify.hpp"

#include <algorithm>

namespace acc::checkpoint::conversion {

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

namespace {

bool is_longer_than_a_tile(const StoredTensor& tensor) {
  return std::ranges::any_of(tensor.pieces, [&](const StoredPiece& piece) {
    return static_cast<std::uint64_t>(piece.box.numel()) * size_of(tensor.dtype) > kTileBytes;
  });
}

}  // namespace

void check_sources(const std::vector<const StoredTensor*>& tensors, TensorReader& reader,
                   const Options& options) {
  std::vector<StoredTensor> parts;
  std::uint64_t total = 0;
  for (const StoredTensor* const tensor : tensors) {
    if (tensor != nullptr && is_longer_than_a_tile(*tensor) && !reader.checks_parts(*tensor)) {
      for (StoredTensor& part : pieces_of(*tensor)) {
        total += elements_nbytes(part);
        parts.push_back(std::move(part));
      }
    }
  }
  ProgressMeter meter(options.progress, "checking what is read,", total);
  for_each_parallel(parts.size(), options.num_threads, [&](std::size_t i, std::size_t) {
    reader.verify(parts[i]);
    meter.add(elements_nbytes(parts[i]));
  });
}

Error not_as_written(const std::filesystem::path& path, const std::string& tensor) {
  return {Errc::config, path.string() + ": tensor " + tensor +
                            " does not read back as it was written; nothing was kept"};
}

}  // namespace acc::checkpoint::conversion
