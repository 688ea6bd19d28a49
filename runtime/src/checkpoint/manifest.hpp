#pragma once

#include "checkpoint/sharded_checkpoint.hpp"

#include <string_view>

/// The encoding of a sharded checkpoint: metadata.json and the names in the rank files.
namespace acc::checkpoint {

inline constexpr const char* kMetadataFile = "metadata.json";

/// "rank_00003.safetensors"
std::string rank_file_name(int rank);
/// Whether a file of that name belongs to a checkpoint folder.
bool is_checkpoint_file(const std::string& file_name);

/// "<tensor>/<kind>/<offset>"; tensor names may hold slashes.
std::string piece_name(const std::string& tensor, const std::string& kind, std::int64_t offset);
struct PieceName {
  std::string tensor, kind;
  std::int64_t offset = 0;
};
/// Throws Error(config) where it is no such name; `path` is for the message.
PieceName parse_piece_name(const std::string& name, const std::filesystem::path& path);

std::string format_manifest(const OldManifest& manifest, const PieceTable& table);
/// Reads metadata.json and checks it whole: version, types, every tensor covered exactly once.
OldManifest parse_manifest(std::string_view text, const std::filesystem::path& path,
                        PieceTable& table);

/// Throws Error(config) where the pieces of a tensor leave out or repeat an element.
void check_cover(const OldManifest& manifest, const PieceTable& table,
                 const std::filesystem::path& path);

}  // namespace acc::checkpoint
