// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/tensor/box.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The file `.metadata` of a torch.distributed.checkpoint folder (docs/formats/dcp.md).
namespace acc::checkpoint::dcp {

inline constexpr const char* kMetadataFile = ".metadata";

/// Place of an entry: an archive in a file of the folder.
struct Place {
  std::string file;  ///< "__0_0.distcp"; never leads out of the folder
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t mark = 0;  ///< of the archive there (mark_of); 0: not known
};

struct Chunk {
  Box box;
  Place place;
};

/// Keys and list positions on the way from the top of the state dict to a value.
using Path = std::vector<std::variant<std::string, std::int64_t>>;

/// Returns the name that torch gives the entry with this path.
std::string joined_by_dots(const Path& path);

/// A tensor; or a pickled value at `value`, if `is_tensor` is false.
struct Entry {
  std::string name;  ///< the path, joined by "."
  Path path;         ///< empty if the file has no planner_data for it
  bool is_tensor = true;
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<Chunk> chunks;
  Place value;
};

struct Metadata {
  std::vector<Entry> entries;
};

/// Parses and checks all of it: classes and types, that the chunks lie in their tensors and cover
/// them exactly once, that every chunk has a place in the folder. Entries that a transform
/// compressed or encrypted are refused with its name. `path` is for messages. Throws Error(config).
Metadata parse_metadata(std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Calls `visit` with the boxes of a tensor's chunks, or with the chunks. Both in the same order.
using VisitBoxes =
    std::function<void(std::size_t entry, const std::function<void(const Box&)>& visit)>;
using VisitChunks =
    std::function<void(std::size_t entry, const std::function<void(const Chunk&)>& visit)>;

/// Writes the pickle in pieces, so that one of several gigabytes needs little memory; for this,
/// `entries` come without their chunks. Asks for the boxes of all entries, in the order of the
/// entries, and then for their chunks. `save_id`: a UUID, as torch writes it, or empty. Takes about
/// 100 bytes per chunk.
void format_metadata(const std::vector<Entry>& entries, const VisitBoxes& boxes,
                     const VisitChunks& chunks, const std::function<void(std::string_view)>& write,
                     const std::string& save_id = {});

}  // namespace acc::checkpoint::dcp
