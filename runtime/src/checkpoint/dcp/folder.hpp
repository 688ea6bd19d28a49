#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/dcp/folder_plan.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace acc::checkpoint::dcp {

/// Calls sink with the elements of a chunk, in its dtype, in order.
using FillChunk = std::function<void(const PlannedChunk& chunk, const torch::Sink& sink)>;

/// Writes a rank's file into an existing folder and flushes it. Every rank at once, without a word
/// to another. Returns its size.
std::uint64_t write_rank_file(const std::filesystem::path& folder, const FolderPlan& plan, int rank,
                              const FillChunk& fill);
/// Rank 0: the same for `.metadata`; returns its size and CRC-32.
struct WrittenMetadata {
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;
};
WrittenMetadata write_metadata_file(const std::filesystem::path& folder, const FolderPlan& plan);

/// Its `.metadata`. Throws Error(config) where it has none, and what `parse_metadata` throws.
Metadata read_metadata(const std::filesystem::path& folder);

/// A DCP folder that anyone wrote, into `catalog`: "model.X" (or X under any single top key but
/// "optimizer") is parameter X, "optimizer.state.X.KIND" its kind; other tensors keep their name
/// with kind "value". `training` gets step and groups from an optimizer's values, as far as they
/// are there, the step only where it has none. Checks that every file that is named is there and
/// long enough. Throws Error(config).
void read_folder(const std::filesystem::path& folder, Catalog& catalog, TrainingState& training,
                 Provenance& provenance);

/// The same of a folder that was written by this plan: `.metadata` is not looked at, nor a file
/// before something in it is read, and then only if it has the bytes that `file_nbytes` tells of
/// each rank's. Pieces are computed where they are asked for.
void read_planned_folder(const std::filesystem::path& folder, FolderPlan plan,
                         const std::vector<std::uint64_t>& file_nbytes, Catalog& catalog,
                         TrainingState& training, Provenance& provenance);

/// HuggingFaceStorageWriter's shards (checkpoint-formats 2).
void read_hugging_face(const std::filesystem::path& folder, Catalog& catalog,
                       Provenance& provenance);

}  // namespace acc::checkpoint::dcp
