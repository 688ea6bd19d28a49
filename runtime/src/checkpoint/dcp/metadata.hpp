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
  std::string file;  ///< "__0_0.distcp"; never outside of the folder
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
/// places are named and lie in the folder. Entries that were compressed or encrypted by a transform
/// are refused by name. `path`: for messages. Throws Error(config).
Metadata parse_metadata(std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Calls `visit` with the boxes of a tensor's chunks, or with the chunks, in the same order.
using VisitBoxes =
    std::function<void(std::size_t entry, const std::function<void(const Box&)>& visit)>;
using VisitChunks =
    std::function<void(std::size_t entry, const std::function<void(const Chunk&)>& visit)>;

/// Hands the pickle out in pieces, so that one of gigabytes takes no memory: the entries come
/// without their chunks. Asks for all entries' boxes, in the order of the entries, then for their
/// chunks. `save_id`: a UUID, as torch has it, or empty. About 100 bytes a chunk.
void format_metadata(const std::vector<Entry>& entries, const VisitBoxes& boxes,
                     const VisitChunks& chunks, const std::function<void(std::string_view)>& write,
                     const std::string& save_id = {});

}  // namespace acc::checkpoint::dcp
