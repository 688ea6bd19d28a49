#pragma once

#include "checkpoint/tensor/box.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// `.metadata` of a torch.distributed.checkpoint folder (checkpoint-formats 1.1, 1.2).
namespace acc::checkpoint::dcp {

inline constexpr const char* kMetadataFile = ".metadata";

/// Where an entry lies: an archive of its own in a file of the folder.
struct Place {
  std::string file;  ///< "__0_0.distcp"
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
};

struct Chunk {
  Box box;
  Place place;
};

/// Keys and list positions from the top of the state dict to the value.
using Path = std::vector<std::variant<std::string, std::int64_t>>;

/// A tensor, or a pickled value where `is_tensor` is false (then `value` is its place).
struct Entry {
  std::string name;  ///< the path, joined by "."
  Path path;         ///< empty where the file does not tell it
  bool is_tensor = true;
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<Chunk> chunks;
  Place value;
};

struct Metadata {
  std::vector<Entry> entries;
};

/// Checks all of it: classes, types, that boxes lie in their tensors and cover them once, that
/// places are named. `path`: for messages. Throws Error(config).
Metadata parse_metadata(std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Hands the pickle out in pieces, so that one of gigabytes takes no memory: `chunks` of entry
/// number i are asked for when they are written, twice, in the same order.
struct EntryHead {
  std::string name;
  Path path;
  bool is_tensor = true;
  Dtype dtype = Dtype::f32;
  Shape shape;
  Place value;
};
using VisitChunks =
    std::function<void(std::size_t entry, const std::function<void(const Chunk&)>& visit)>;
void format_metadata(const std::vector<EntryHead>& entries, const VisitChunks& chunks,
                     const std::function<void(std::string_view)>& write);

}  // namespace acc::checkpoint::dcp
