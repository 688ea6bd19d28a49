// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/dcp/folder_plan.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace acc::checkpoint::dcp {

/// Calls `sink` with the elements of a chunk, in the tensor's dtype, in order.
using FillChunk = std::function<void(const PlannedChunk& chunk, const torch::Sink& sink)>;

/// Writes a rank's file into an existing folder and flushes it to disk. Returns its size. Ranks
/// call it without any communication.
std::uint64_t write_rank_file(const std::filesystem::path& folder, const FolderPlan& plan, int rank,
                              const FillChunk& fill);
/// Writes and flushes `.metadata`. Called by rank 0. Returns the size and the CRC-32.
struct WrittenMetadata {
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;
};
WrittenMetadata write_metadata_file(const std::filesystem::path& folder, const FolderPlan& plan);

/// Reads and parses `.metadata`. Throws Error(config) if it does not exist, and what
/// `parse_metadata` throws.
Metadata read_metadata(const InputPath& folder);

/// Reads a DCP folder of any writer into `catalog`. "model.X" (or X under any single top key except
/// "optimizer") becomes parameter X, and "optimizer.state.X.KIND" becomes its kind. Other tensors
/// keep their names, with kind "value". `training` receives the step and the groups from an
/// optimizer's entries, as far as they exist; the step only if it has none yet. Checks that every
/// file exists and is long enough. Throws Error(config).
void read_folder(const InputPath& folder, Catalog& catalog, TrainingState& training,
                 Provenance& provenance);

/// The same for a folder that was written by this plan. Does not read `.metadata`, and opens a file
/// only when something in it is read; the file must then have the size that `file_nbytes` gives for
/// its rank. Pieces are computed on request.
void read_planned_folder(const InputPath& folder, FolderPlan plan,
                         const std::vector<std::uint64_t>& file_nbytes, Catalog& catalog,
                         TrainingState& training, Provenance& provenance);

/// Reads the shards that HuggingFaceStorageWriter writes (docs/formats/dcp.md).
void read_hugging_face(const InputPath& folder, Catalog& catalog, Provenance& provenance);

}  // namespace acc::checkpoint::dcp
