#pragma once

#include "checkpoint/dcp/folder.hpp"
#include "checkpoint/state/model_files.hpp"

#include <string>

/// SHARDED_STATE_DICT: torch DCP folders into which every rank writes its shards at once.
namespace acc::checkpoint {

/// A DCP folder that is to be written, and who brings the bytes. Valid as long as model and
/// optimizer; what it plans is the same on every rank.
struct PlannedFolder {
  std::string name;  ///< in the save folder
  dcp::FolderPlan plan;
  dcp::FillChunk fill;
};

/// "pytorch_model_fsdp_<index>": parameters under each of their names, and buffers.
PlannedFolder plan_model_folder(detail::ModelState& model, int index);
/// "optimizer_<index>": moments, step and parameter groups.
PlannedFolder plan_optimizer_folder(const Part& part, int index);

}  // namespace acc::checkpoint
