// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_path.hpp"

#include <optional>
#include <vector>

namespace acc::checkpoint::deepspeed {

/// The files of one tag, sorted by rank.
struct CheckpointFiles {
  InputPath folder;
  std::optional<InputPath> module;      ///< mp_rank_00_model_states.pt (stages 0 to 2)
  std::vector<InputPath> rank_modules;  ///< one per rank (stage 3)
  std::vector<InputPath> optimizers;    ///< one per rank (stages 1 to 3)
};

/// Lists the files. `path` is the folder of a tag, or the folder with `latest`. Throws
/// Error(config) with the folder and the missing rank. Refuses by name what is not only data
/// parallel: ranks of tensor parallelism, pipeline layers, experts, universal checkpoints.
CheckpointFiles list_files(const InputPath& path);

}  // namespace acc::checkpoint::deepspeed
