// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"
#include "api/mine.hpp"
#include "api/runtime_state.hpp"
#include "flight/recorder.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"
#include "state_dict/model_files.hpp"

#include <vector>

namespace acc {

using sharding::guarded;

// A model's first use is collective, and any of these functions may be it; `finalize` does nothing
// later. Errors of the file formats are thrown on every rank alike by checkpoint/state, so that no
// rank waits for one that has given up.

void Model::load_weights(const std::string& path) {
  guarded(state_->context().groups, [&] {
    state_->finalize();
    state_dict::load_weights(*state_, path);
  });
}

void Model::export_weights(const std::string& path, const ExportOptions& options) {
  mine(state_).finalize();
  guarded(state_->context().groups, [&] { state_dict::export_weights(*state_, path, options); });
}

void Model::state_dict(const StateDictOptions& options, const VisitTensor& visit) {
  mine(state_).finalize();
  guarded(state_->context().groups, [&] { state_dict::state_dict(*state_, options, visit); });
}

void Runtime::save(const std::string& directory, const Model& model, const Optimizer& optimizer,
                   const SavedState& state) {
  save(directory, std::vector<Trained>{{model, optimizer}}, state);
}

void Runtime::save(const std::string& directory, std::span<const Trained> parts,
                   const SavedState& state) {
  mine(state_).save(directory, parts, state, checkpoint::Existing::replace);
}

void detail::RuntimeState::save(const std::string& directory, std::span<const Trained> parts,
                                const SavedState& state, checkpoint::Existing existing) {
  const flight::Scope scope(groups.recorder.get(), "save", "");
  const trace::Scope traced(tracer.get(), "checkpoint", "checkpoint", "save");
  std::vector<state_dict::Part> all;
  for (const Trained& each : parts) {
    all.push_back(state_dict::part_of(mine(each.model.state_), mine(each.optimizer.state_)));
  }
  // The number is used up even if the save fails: the temporary names of two saves never coincide.
  guarded(groups, [&] { state_dict::save(all, directory, state, save_id++, existing); });
}

SavedState Runtime::load(const std::string& directory, Model& model, Optimizer& optimizer) {
  return load(directory, std::vector<Trained>{{model, optimizer}});
}

SavedState Runtime::load(const std::string& directory, std::span<const Trained> parts) {
  const flight::Scope scope(mine(state_).groups.recorder.get(), "load", "");
  const trace::Scope traced(state_->tracer.get(), "checkpoint", "checkpoint", "load");
  std::vector<state_dict::Part> all;
  for (const Trained& each : parts) {
    all.push_back(state_dict::part_of(mine(each.model.state_), mine(each.optimizer.state_)));
  }
  return guarded(state_->groups, [&] { return state_dict::load(all, directory); });
}

}  // namespace acc
