// SPDX-License-Identifier: Apache-2.0
#include "acc/base/log.hpp"
#include "acc/runtime.hpp"
#include "api/background_save.hpp"
#include "api/mine.hpp"
#include "api/runtime_state.hpp"
#include "flight/recorder.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"
#include "state_dict/model_files.hpp"

#include <array>
#include <memory>
#include <optional>
#include <utility>
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

std::vector<state_dict::Part> detail::RuntimeState::parts_of(std::span<const Trained> parts) {
  std::vector<state_dict::Part> all;
  for (const Trained& each : parts) {
    all.push_back(state_dict::part_of(mine(each.model.state_), mine(each.optimizer.state_)));
  }
  if (all.empty()) {
    throw Error(Errc::invalid_argument, "a checkpoint needs at least one model");
  }
  return all;
}

void detail::RuntimeState::save(const std::string& directory, std::span<const Trained> parts,
                                const SavedState& state, checkpoint::Existing existing) {
  end_save();
  const flight::Scope scope(groups.recorder.get(), "save", "");
  const trace::Scope traced(tracer.get(), "checkpoint", "checkpoint", "save");
  const auto all = parts_of(parts);
  // The number is used up even if the save fails: the temporary names of two saves never coincide.
  guarded(groups, [&] { state_dict::save(all, directory, state, save_id++, existing); });
}

bool Runtime::save_async(const std::string& directory, const Model& model,
                         const Optimizer& optimizer, const SavedState& state, IfSaving if_saving) {
  return save_async(directory, std::vector<Trained>{{model, optimizer}}, state, if_saving);
}

bool Runtime::save_async(const std::string& directory, std::span<const Trained> parts,
                         const SavedState& state, IfSaving if_saving) {
  detail::RuntimeState& own = mine(state_);
  if (if_saving == IfSaving::refuse) {
    std::array<double, 1> saving = {own.saving() ? 1.0 : 0.0};
    guarded(own.groups, [&] { own.groups.world->all_reduce(saving, ReduceOp::max)->wait(); });
    if (saving[0] != 0.0) {
      return false;
    }
  }
  own.end_save();
  own.save_async(directory, parts, state, checkpoint::Existing::replace);
  return true;
}

bool Runtime::saving() const {
  return mine(state_).saving();
}

void Runtime::wait_save() {
  mine(state_).wait_save();
}

// No rank may leave this function early: the others would wait for its files. What fails on one
// rank alone is kept in the attempt.
void detail::RuntimeState::save_async(const std::string& directory, std::span<const Trained> parts,
                                      const SavedState& state, checkpoint::Existing existing,
                                      std::function<void()> committed) {
  check_gathers_nothing(settings.sharding);
  const flight::Scope scope(groups.recorder.get(), "save", "");
  const trace::Scope traced(tracer.get(), "checkpoint", "checkpoint", "snapshot");
  logger(Component::runtime).debug("saving to {} beside the training", directory);
  guarded(groups, [&] {
    const auto all = parts_of(parts);
    BackgroundSave::Plan plan{
        .directory = directory,
        .id = save_id++,
        .existing = existing,
        .snapshot = state_dict::take_snapshot(all, state),
        .attempt = {},
        .store = settings.identity.world_size > 1 ? store->clone() : nullptr,
        .previous = last_background_,
        .committed = std::move(committed),
        .failure = [world = groups.world, check = check_]() -> std::optional<std::string> {
          try {
            if (check) {
              check();
            }
          } catch (const Error& error) {
            return error.what();
          }
          return world->failure();
        },
        .timeout = settings.collective_timeout};
    plan.attempt([&] { state_dict::copy_values(plan.snapshot, all); });
    last_background_ = plan.id;
    background_ = std::make_unique<BackgroundSave>(std::move(plan));
  });
}

void detail::RuntimeState::end_save() {
  if (background_ == nullptr) {
    return;
  }
  if (auto failure = background_->wait()) {
    background_failure_ = std::move(failure);
  }
  background_.reset();
}

void detail::RuntimeState::wait_save() {
  end_save();
  if (const auto failure = std::exchange(background_failure_, std::nullopt)) {
    throw Error(Errc::config, *failure);
  }
}

bool detail::RuntimeState::saving() const {
  return background_ != nullptr && !background_->has_ended();
}

SavedState Runtime::load(const std::string& directory, Model& model, Optimizer& optimizer) {
  return load(directory, std::vector<Trained>{{model, optimizer}});
}

SavedState Runtime::load(const std::string& directory, std::span<const Trained> parts) {
  mine(state_).end_save();  // it may be the checkpoint to load
  const flight::Scope scope(state_->groups.recorder.get(), "load", "");
  const trace::Scope traced(state_->tracer.get(), "checkpoint", "checkpoint", "load");
  const auto all = detail::RuntimeState::parts_of(parts);
  return guarded(state_->groups, [&] { return state_dict::load(all, directory); });
}

}  // namespace acc
