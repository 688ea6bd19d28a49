#pragma once

#include "acc/runtime.hpp"
#include "checkpoint/files/atomic_folder.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace acc::detail {
class ModelState;
class OptimizerState;
}  // namespace acc::detail

/// A model's shards to and from files. All functions are collective: an error on any rank is an
/// error on all, and no file is left half-written.
namespace acc::checkpoint {

/// A model and what trains it.
struct Part {
  detail::ModelState* model;
  detail::OptimizerState* optimizer;
};
/// Makes the model ready. Throws Error(invalid_argument) where the optimizer is of another one.
Part part_of(detail::ModelState& model, detail::OptimizerState& optimizer);

void load_weights(detail::ModelState& model, const std::string& path);
void export_weights(detail::ModelState& model, const std::string& path,
                    const ExportOptions& options);
void state_dict(detail::ModelState& model, const StateDictOptions& options,
                const VisitTensor& visit);

/// `id`: the same on all ranks, and another one for every save.
void save(std::span<const Part> parts, const std::string& directory, const SavedState& state,
          std::uint32_t id, Existing existing);
SavedState load(std::span<const Part> parts, const std::string& directory);

}  // namespace acc::checkpoint
