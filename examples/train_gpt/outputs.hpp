#pragma once

#include "options.hpp"

#include <filesystem>

namespace train_gpt {

/// The file that is written last into a sharded checkpoint's folder.
inline constexpr const char* kCheckpointMark = "metadata.json";
bool is_checkpoint(const std::filesystem::path& folder);

/// Refuses, before the first step, destinations of --save, --checkpoint and --export that cannot be
/// written later. Throws acc::Error(config) naming the path. Rank 0 writes, so rank 0 checks.
void check_outputs(const Options& options);

}  // namespace train_gpt
