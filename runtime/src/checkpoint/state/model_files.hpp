#pragma once

#include "acc/runtime.hpp"

#include <string>

namespace acc::detail {
class ModelState;
class OptimizerState;
}  // namespace acc::detail

/// A model's shards to and from files. All functions are collective: an error on any rank is an
/// error on all, and no file is left half-written.
namespace acc::checkpoint {

void load_weights(detail::ModelState& model, const std::string& path);
void export_weights(detail::ModelState& model, const std::string& path);
void save_checkpoint(detail::ModelState& model, detail::OptimizerState& optimizer,
                     const std::string& directory, const ProgramState& program);
ProgramState load_checkpoint(detail::ModelState& model, detail::OptimizerState& optimizer,
                             const std::string& directory);

}  // namespace acc::checkpoint
