// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/runtime.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace acc::detail {
class ModelState;
class OptimizerState;
}  // namespace acc::detail

/// A model's shards to and from files. All functions are collective: an error on one rank becomes
/// an error on all ranks, and no file is left half-written.
namespace acc::state_dict {

using checkpoint::Existing;

/// A model and its optimizer.
struct Part {
  detail::ModelState* model;
  detail::OptimizerState* optimizer;
};
/// Finalizes the model and returns both. Throws Error(invalid_argument) if the optimizer belongs to
/// another model.
Part part_of(detail::ModelState& model, detail::OptimizerState& optimizer);

/// Loads weights from a checkpoint or weights file of any format.
void load_weights(detail::ModelState& model, const std::string& path);
/// Writes weights to a file (.safetensors, .bin) or a folder of safetensors files.
void export_weights(detail::ModelState& model, const std::string& path,
                    const ExportOptions& options);
/// Calls `visit` with every parameter and buffer as a whole tensor.
void state_dict(detail::ModelState& model, const StateDictOptions& options,
                const VisitTensor& visit);

/// Saves models, optimizers and the program's state into a folder. `id` must be the same on all
/// ranks, and different for every save.
void save(std::span<const Part> parts, const std::string& directory, const SavedState& state,
          std::uint32_t id, Existing existing);
/// Loads what `save` wrote, or another program's checkpoint. Returns the program's state.
SavedState load(std::span<const Part> parts, const std::string& directory);

}  // namespace acc::state_dict
