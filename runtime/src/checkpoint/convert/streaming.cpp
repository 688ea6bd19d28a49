#include "checkpoint/convert/outputs.hpp"
#include "checkpoint/convert/tiles.hpp"

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

Error not_as_written(const std::filesystem::path& path, const std::string& tensor) {
  return {Errc::config, path.string() + ": tensor " + tensor +
                            " does not read back as it was written; nothing was kept"};
}

}  // namespace acc::checkpoint::conversion
