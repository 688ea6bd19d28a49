#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/deepspeed/checkpoint_files.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::deepspeed {

/// A flat array in a rank's file: its part of a parameter group (stages 1, 2) or of a sub-group
/// (stage 3), and its moments, which may be longer by padding that only they keep.
struct Flat {
  torch::TensorRef master;
  std::map<std::string, torch::TensorRef> moments;  ///< by kind
};

/// What is the same in every rank's *_optim_states.pt.
struct OptimizerState {
  int stage = 0;
  std::vector<std::size_t> group_of;                          ///< parameter group of every flat
  std::vector<std::vector<std::int64_t>> alignment_paddings;  ///< [flat][tensor]; may be empty
  std::vector<StoredGroup> groups;                            ///< without names
  std::optional<std::int64_t> step;
  std::map<std::string, double> loss_scaler;
  std::vector<std::vector<Flat>> ranks;  ///< [rank][flat]
};

/// Reads all of them; throws Error(config) that names file and key where one is damaged, or unlike
/// rank 0's.
OptimizerState read_optimizer_files(const CheckpointFiles& files);

}  // namespace acc::checkpoint::deepspeed
