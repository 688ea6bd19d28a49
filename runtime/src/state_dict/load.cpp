// SPDX-License-Identifier: Apache-2.0
#include "acc/base/log.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/model_files.hpp"
#include "state_dict/rule_states.hpp"
#include "state_dict/stored_model.hpp"

#include <fmt/format.h>

#include <bit>
#include <optional>

// Loading a checkpoint: every rank opens it, checks that it fits the model, and reads its own
// shards. It checks everything that metadata shows before it overwrites its first weight. Ranks
// learn of each other's failures at the end (Attempt::settle); after a failure the weights are
// undefined.
namespace acc::state_dict {
namespace {

void check_optimizer(const Stored& stored, const detail::OptimizerState& optimizer) {
  if (!stored.training.optimizer.empty() && stored.training.optimizer != optimizer.name()) {
    throw Error(Errc::config,
                fmt::format("{} was saved with optimizer {}, this run uses {}",
                            stored.path.string(), stored.training.optimizer, optimizer.name()));
  }
}

void load_training(const Stored& stored, detail::ModelState& model,
                   detail::OptimizerState& optimizer) {
  const TrainingState& training = stored.training;
  if (!training.step && is_rank_zero(model)) {
    logger(Component::runtime)
        .warn("{} does not store the number of steps: counting starts at 0", stored.path.string());
  }
  if (training.fewest_steps && training.fewest_steps != training.step && is_rank_zero(model)) {
    logger(Component::runtime)
        .warn(
            "{}: parameters were updated {} to {} times; this runtime counts one number for all, "
            "and goes on with {}",
            stored.path.string(), *training.fewest_steps, *training.step, *training.step);
  }
  optimizer.steps = training.step.value_or(0);
  optimizer.skipped_steps = training.skipped_steps;
  if (optimizer.scaler()) {
    optimizer.scaler()->restore(training.loss_scaler);
  }
}

/// Loads a model and its optimizer. Checks names, shapes and dtypes of everything before it
/// overwrites anything. Returns our manifest, if we wrote the checkpoint.
std::optional<Manifest> load_part(const Part& part, const InputPath& folder, int index,
                                  ProgressMeter& meter) {
  StoredModel stored(folder, Want::everything, index);
  stored.count_into(meter);
  check_optimizer(stored.stored(), *part.optimizer);
  stored.check(*part.model,
               stored.stored().manifest ? BuffersMay::not_be_missing : BuffersMay::be_missing);
  const auto moments = moment_arrays(*part.model, *part.optimizer);
  if (!moments.empty()) {
    stored.name_by(*part.optimizer);
  }
  for (const FlatArray& array : moments) {
    stored.check(array);
  }
  device::Device& device = *part.model->context().updater;
  for (const FlatArray& array : weight_arrays(*part.model)) {
    stored.read(device, array);
  }
  for (const FlatArray& array : moments) {
    stored.read(device, array);
  }
  for (auto* buffer : part.model->buffers()) {
    stored.read_buffer(*part.model, *buffer);
  }
  load_training(stored.stored(), *part.model, *part.optimizer);
  return stored.stored().manifest;
}

/// Size of the values that this rank reads, without buffers.
std::uint64_t loaded_nbytes(std::span<const Part> parts) {
  std::uint64_t nbytes = 0;
  for (const Part& part : parts) {
    nbytes += owned_nbytes(weight_arrays(*part.model)) +
              owned_nbytes(moment_arrays(*part.model, *part.optimizer));
  }
  return nbytes;
}

/// Loads the seeds of stochastic rounding from rank 0's file on all ranks: ranks that hold the same
/// shard must round alike.
void load_seeds(std::span<const Part> parts, const InputPath& folder) {
  const InputPath path = folder / accelerate::random_states_file(0);
  if (!path.exists()) {
    return;
  }
  const ProgramState values = accelerate::read_random_states(path);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto found = values.find(seed_name(static_cast<int>(i)));
    const auto* seed = found == values.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
    if (seed != nullptr) {
      parts[i].model->seed_noise(std::bit_cast<std::uint64_t>(*seed));
    }
  }
}

/// Loads the values that we wrote next to the tensors. Only called if there is a manifest, because
/// files of other writers with these names may hold anything.
SavedState load_own_values(std::span<const Part> parts, const InputPath& folder,
                           const Manifest& manifest) {
  SavedState state;
  const sharding::Groups& groups = parts.front().model->context().groups;
  const int rank = groups.world->rank();
  const std::string custom = accelerate::custom_file(0);
  const std::string own = accelerate::random_states_file(rank);
  const std::string of_shards = accelerate::random_states_file(rank % groups.plan.state_shards());
  for (const std::string& name : {custom, own, of_shards, accelerate::random_states_file(0)}) {
    check_sizes(manifest, folder, name);
    if ((folder / name).exists()) {
      check_file(manifest, folder, name);
    }
  }
  if ((folder / custom).exists()) {
    state.program = accelerate::read_custom(folder / custom);
  }
  if ((folder / own).exists()) {
    state.of_rank = accelerate::read_random_states(folder / own);
    std::erase_if(state.of_rank,
                  [](const auto& each) { return each.first.starts_with(kSeedPrefix); });
  }
  if (!(folder / own).exists() && (folder / of_shards).exists()) {
    add_values_of_shards(accelerate::read_random_states(folder / of_shards), state.of_rank);
  }
  load_seeds(parts, folder);
  return state;
}

}  // namespace

SavedState load(std::span<const Part> parts, const std::string& directory) {
  if (parts.empty()) {
    throw Error(Errc::invalid_argument, "a checkpoint needs at least one model");
  }
  const auto& groups = parts.front().model->context().groups;
  // No rank may overwrite weights while a peer still reads them in a gather.
  for (const Part& part : parts) {
    await_readers(*part.model);
  }
  groups.world->barrier()->wait();
  SavedState state;
  InputPath folder;
  Attempt attempt;
  attempt([&] {
    folder = find_checkpoint(directory);
    std::optional<Manifest> manifest;
    ProgressMeter meter(shows_progress(*parts.front().model), Component::runtime,
                        "loading " + folder.string(), loaded_nbytes(parts));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      manifest = load_part(parts[i], folder, static_cast<int>(i), meter);
    }
    if (manifest) {
      state = load_own_values(parts, folder, *manifest);
    }
    load_rule_states(parts, state, folder.string());
  });
  prove_unchanged(attempt, groups, folder, directory);
  attempt.settle(groups, "loading " + directory);
  for (const Part& part : parts) {
    part.optimizer->finish_loading();
    renew_weights(*part.model);
  }
  return state;
}

}  // namespace acc::state_dict
