#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace acc::checkpoint::deepspeed {

/// The files of one tag.
struct CheckpointFiles {
  std::filesystem::path folder;
  std::optional<std::filesystem::path> module;      ///< mp_rank_00_model_states.pt (stages 0 to 2)
  std::vector<std::filesystem::path> rank_modules;  ///< of every rank (stage 3)
  std::vector<std::filesystem::path> optimizers;    ///< of every rank (stages 1 to 3)
};

/// Lists them by rank. `path`: of the tag, or of the folder with `latest`. Throws Error(config)
/// that names the folder and the rank that is missing, and refuses by name what is not data
/// parallel alone: tensor parallel ranks, pipeline layers, experts, universal checkpoints.
CheckpointFiles list_files(const std::filesystem::path& path);

}  // namespace acc::checkpoint::deepspeed
