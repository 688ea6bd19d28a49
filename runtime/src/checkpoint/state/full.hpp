#pragma once

#include "checkpoint/state/attempt.hpp"
#include "checkpoint/state/model_files.hpp"

#include <filesystem>
#include <optional>

/// FULL_STATE_DICT: rank 0 writes whole tensors, gathered unit by unit. All functions are
/// collective, and what fails on a rank is left in `attempt`.
namespace acc::checkpoint {

/// Parameters under all of their names and buffers, into one new file: safetensors by its ending,
/// else torch.save's. dtype: of parameters; absent: that in which they are kept.
void write_full_model(detail::ModelState& model, const std::filesystem::path& path,
                      std::optional<DType> dtype, Attempt& attempt);
/// {"state": …, "param_groups": …} by torch.save.
void write_full_optimizer(const Part& part, const std::filesystem::path& path, Attempt& attempt);

}  // namespace acc::checkpoint
