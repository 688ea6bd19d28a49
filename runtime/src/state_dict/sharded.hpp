#pragma once

#include "acc/checkpoint/dcp/folder.hpp"
#include "state_dict/model_files.hpp"

#include <string>

/// SHARDED_STATE_DICT: torch DCP folders, into which all ranks write their shards in parallel.
namespace acc::checkpoint {

/// A DCP folder to be written, and a source for its bytes. Valid as long as the model and the
/// optimizer. The plan is the same on every rank.
struct PlannedFolder {
  std::string name;  ///< in the save folder
  dcp::FolderPlan plan;
  dcp::FillChunk fill;
};

/// Plans "pytorch_model_fsdp_<index>": parameters under each of their names, and buffers.
PlannedFolder plan_model_folder(detail::ModelState& model, int index);
/// Plans "optimizer_<index>": moments, steps and parameter groups.
PlannedFolder plan_optimizer_folder(const Part& part, int index);

}  // namespace acc::checkpoint
