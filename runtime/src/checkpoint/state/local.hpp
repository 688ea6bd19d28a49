#pragma once

#include "checkpoint/state/local_layout.hpp"
#include "checkpoint/state/model_files.hpp"

#include <filesystem>

/// LOCAL_STATE_DICT: each rank writes its shards as they lie in memory.
namespace acc::checkpoint {

/// The same on every rank.
LocalModel local_layout_of(detail::ModelState& model);
/// This rank's shards by the keys of the layout, padding included, and the buffers, into a new
/// file.
void write_local_model(detail::ModelState& model, const LocalModel& layout,
                       const std::filesystem::path& path);

}  // namespace acc::checkpoint
