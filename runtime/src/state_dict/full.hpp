#pragma once

#include "state_dict/attempt.hpp"
#include "state_dict/model_files.hpp"

#include <filesystem>
#include <optional>

/// FULL_STATE_DICT: rank 0 writes whole tensors, which are gathered unit by unit. All functions are
/// collective. A failure of this rank is kept in `attempt`, so that it still takes part in the
/// remaining gathers.
namespace acc::checkpoint {

/// Writes parameters under all of their names, and buffers, to one new file: safetensors if the
/// path ends in .safetensors, otherwise a torch.save archive. `dtype` is for parameters; absent:
/// the dtype in which they are kept.
void write_full_model(detail::ModelState& model, const std::filesystem::path& path,
                      std::optional<DType> dtype, Attempt& attempt);
/// Writes {"state": …, "param_groups": …} as a torch.save archive.
void write_full_optimizer(const Part& part, const std::filesystem::path& path, Attempt& attempt);

}  // namespace acc::checkpoint
