#pragma once

#include "acc/checkpoint/local/local_layout.hpp"
#include "state_dict/model_files.hpp"

#include <filesystem>

/// LOCAL_STATE_DICT: each rank writes its shards as they are in memory.
namespace acc::checkpoint {

/// Returns the layout of the flat parameters. It is the same on every rank.
LocalModel local_layout_of(detail::ModelState& model);
/// Writes this rank's shards, with padding, under the keys of the layout, and the buffers, to a new
/// file.
void write_local_model(detail::ModelState& model, const LocalModel& layout,
                       const std::filesystem::path& path);

}  // namespace acc::checkpoint
