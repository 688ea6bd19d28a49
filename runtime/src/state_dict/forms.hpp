// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/local/local_layout.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/gathered.hpp"
#include "state_dict/held_values.hpp"
#include "state_dict/model_files.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::state_dict {

/// Returns a sink that also counts the bytes in a meter. Both arguments must outlive it.
inline torch::Sink counted(const torch::Sink& sink, ProgressMeter& meter) {
  return [&](std::span<const std::byte> bytes) {
    sink(bytes);
    meter.add(bytes.size());
  };
}

// SHARDED_STATE_DICT: torch DCP folders, into which all ranks write their shards in parallel.

/// A DCP folder to be written, and a source for its bytes. The plan is the same on every rank.
struct PlannedFolder {
  std::string name;  ///< in the save folder
  dcp::FolderPlan plan;
  dcp::FillChunk fill;
  std::vector<HeldPtr> held;  ///< by PlannedChunk::source; null: a number that every rank has
};

/// Plans "pytorch_model_fsdp_<index>": parameters under each of their names, and buffers.
PlannedFolder plan_model_folder(detail::ModelState& model, int index);
/// Plans "optimizer_<index>": moments, steps and parameter groups.
PlannedFolder plan_optimizer_folder(const Part& part, int index);

// FULL_STATE_DICT: rank 0 writes whole tensors, which are gathered unit by unit. The functions with
// an Attempt are collective: a failure of this rank is kept in it, so that the rank still takes
// part in the remaining gathers.

/// Writes parameters under all of their names, and buffers, to one new file: safetensors if the
/// path ends in .safetensors, otherwise a torch.save archive. `dtype` is for parameters; absent:
/// the dtype in which they are kept.
void write_full_model(detail::ModelState& model, const std::filesystem::path& path,
                      std::optional<DType> dtype, Attempt& attempt, ProgressMeter& meter);
/// Writes {"state": …, "param_groups": …} as a torch.save archive.
void write_full_optimizer(const Part& part, const std::filesystem::path& path, Attempt& attempt,
                          ProgressMeter& meter);

/// Returns the dtype in which an item is written.
Dtype written_dtype(const FullItem& item, std::optional<DType> dtype);

/// Writes items [first, first + count) to one new file and flushes it: safetensors if the path ends
/// in .safetensors, otherwise a torch.save archive. Rank 0 calls it. `dtype` is for parameters;
/// absent: the dtype in which they are kept.
void write_weights_file(const std::filesystem::path& path, GatheredTensors& tensors,
                        std::size_t first, std::size_t count, std::optional<DType> dtype);

// LOCAL_STATE_DICT: each rank writes its shards as they are in memory.

/// This rank's file: its shards, with padding, under the keys of the layout, and the buffers.
struct PlannedLocal {
  LocalModel layout;  ///< of the flat parameters; the same on every rank
  std::vector<accelerate::FullTensor> tensors;
  std::vector<HeldPtr> held;  ///< by number of the tensor; names of one buffer share theirs
};
PlannedLocal plan_local_model(detail::ModelState& model);
/// Writes the tensors to a new file.
void write_local_model(const PlannedLocal& planned, const std::filesystem::path& path,
                       ProgressMeter& meter);

}  // namespace acc::state_dict
