// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "deepspeed/checkpoint_files.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::deepspeed {

/// A flat array of a rank: its partition of a parameter group (stages 1 and 2) or of a sub-group
/// (stage 3), and the moments of that partition. The moments may be longer by padding that only
/// they keep.
struct Flat {
  torch::TensorRef master;
  std::map<std::string, torch::TensorRef> moments;  ///< by kind
  std::optional<std::int64_t> step = {};            ///< number of its updates
};

/// Content of all ranks' *_optim_states.pt files.
struct OptimizerState {
  int stage = 0;
  std::vector<std::size_t> group_of;                          ///< parameter group per flat array
  std::vector<std::vector<std::int64_t>> alignment_paddings;  ///< [flat][tensor]; may be empty
  std::vector<StoredGroup> groups;                            ///< without names of parameters
  std::optional<std::int64_t> step;
  std::map<std::string, double> loss_scaler;
  std::vector<std::vector<Flat>> ranks;  ///< [rank][flat]
  std::vector<std::string> unread = {};  ///< keys of values of groups that are left out
};

/// Reads all ranks' files. Throws Error(config) with file and key if one is damaged or does not
/// match rank 0's.
OptimizerState read_optimizer_files(const CheckpointFiles& files);

}  // namespace acc::checkpoint::deepspeed
