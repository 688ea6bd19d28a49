// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot.hpp"

#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/rule_states.hpp"
#include "state_dict/saved_arrays.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace acc::state_dict {
namespace {

namespace fs = std::filesystem;
using settings::StateDictType;

/// True if models are saved as model.safetensors, as Accelerate does without FSDP.
bool is_plain(const settings::RuntimeSettings& settings) {
  return settings.origin == "none" && settings.sharding.strategy == settings::Strategy::no_shard;
}

// Name of a state-dict type, as Accelerate's configuration spells it.
std::string words_of(StateDictType form) {
  switch (form) {
    case StateDictType::full: return "FULL_STATE_DICT";
    case StateDictType::local: return "LOCAL_STATE_DICT";
    case StateDictType::sharded: break;
  }
  return "SHARDED_STATE_DICT";
}

accelerate::SchedulerState scheduler_state(const detail::OptimizerState& optimizer) {
  accelerate::SchedulerState state{.steps = optimizer.steps, .base_lrs = {}, .last_lrs = {}};
  for (const auto& group : optimizer.group_records()) {
    state.base_lrs.push_back(group.base_lr);
    state.last_lrs.push_back(group.hyper_parameters.at("lr"));
  }
  return state;
}

/// Size of the values that this rank writes, without buffers. In the FULL form rank 0 writes all.
std::uint64_t written_nbytes(std::span<const Part> parts) {
  std::uint64_t nbytes = 0;
  for (const Part& part : parts) {
    const auto& settings = part.model->context().settings.sharding;
    const auto weights = weight_arrays(*part.model);
    const auto moments = moment_arrays(*part.model, *part.optimizer);
    nbytes += settings.state_dict_type == StateDictType::full
                  ? full_nbytes(weights) + full_nbytes(moments)
                  : owned_nbytes(weights) + owned_nbytes(moments);
    nbytes += settings.save_16bit_model ? full_nbytes(weights) : 0;
  }
  return nbytes;
}

Manifest::Training training_of(detail::OptimizerState& optimizer) {
  return {optimizer.steps, optimizer.skipped_steps, optimizer.name(),
          optimizer.scaler() ? optimizer.scaler()->state() : std::map<std::string, double>()};
}

/// Collects what one rank writes of all models.
class SnapshotBuilder {
 public:
  SnapshotBuilder(std::span<const Part> parts, const SavedState& state)
      : parts_(parts), context_(parts.front().model->context()) {
    snapshot_.rank = context_.groups.world->rank();
    snapshot_.ranks = context_.groups.world->size();
    snapshot_.state = with_rule_states(parts, state);
    snapshot_.nbytes = written_nbytes(parts);
  }

  Snapshot build() && {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      add_part(parts_[i], static_cast<int>(i));
    }
    add_small_files();
    add_manifest();
    return std::move(snapshot_);
  }

 private:
  [[nodiscard]] const settings::ShardingSettings& sharding() const {
    return context_.settings.sharding;
  }

  void add_part(const Part& part, int index) {
    snapshot_.held.emplace_back();
    switch (sharding().state_dict_type) {
      case StateDictType::sharded:
        add_folder(plan_model_folder(*part.model, index));
        add_folder(plan_optimizer_folder(part, index));
        break;
      case StateDictType::local:
        add_local(*part.model, index);
        add_folder(plan_optimizer_folder(part, index));
        break;
      case StateDictType::full: add_full(part, index); break;
    }
    if (sharding().save_16bit_model) {
      add_model(*part.model, accelerate::plain_bin_file(index),
                part.model->context().precision.gathered);
    }
  }

  void add_folder(PlannedFolder planned) {
    add_held(planned.held);
    planned.plan.step = parts_.front().optimizer->steps;
    snapshot_.folders.push_back(std::move(planned));
  }

  void add_held(const std::vector<HeldPtr>& held) {
    for (const HeldPtr& each : held) {
      if (each != nullptr && each->nbytes() > 0) {
        snapshot_.held.back().push_back(each);
      }
    }
  }

  void add_local(detail::ModelState& model, int index) {
    PlannedLocal planned = plan_local_model(model);
    local_.push_back(planned.layout);
    add_held(planned.held);
    add_file(accelerate::local_model_file(index, snapshot_.rank),
             [planned = std::move(planned)](const fs::path& path, ProgressMeter& meter) {
               write_local_model(planned, path, meter);
             });
    for (int rank = 0; rank < snapshot_.ranks; ++rank) {
      snapshot_.expected.push_back(
          {.path = accelerate::local_model_file(index, rank), .rank = rank});
    }
  }

  void add_full(const Part& part, int index) {
    add_model(*part.model,
              is_plain(context_.settings) ? accelerate::plain_model_file(index)
                                          : accelerate::model_file(index),
              std::nullopt);
    const std::string name = accelerate::optimizer_file(index);
    snapshot_.files.push_back(
        {name, [part](const fs::path& path, Attempt& attempt, ProgressMeter& meter) {
           write_full_optimizer(part, path, attempt, meter);
         }});
    snapshot_.expected.push_back({.path = name});
  }

  void add_model(detail::ModelState& model, const std::string& name, std::optional<DType> dtype) {
    snapshot_.files.push_back(
        {name, [&model, dtype](const fs::path& path, Attempt& attempt, ProgressMeter& meter) {
           write_full_model(model, path, dtype, attempt, meter);
         }});
    snapshot_.expected.push_back({.path = name});
  }

  /// Adds a file that this rank writes by itself.
  template <typename Write>
  void add_file(std::string name, Write write) {
    snapshot_.files.push_back(
        {std::move(name),
         [write = std::move(write)](const fs::path& path, Attempt& attempt, ProgressMeter& meter) {
           attempt([&] { write(path, meter); });
         }});
  }

  /// Adds a file that rank 0 writes, with its checksum in the manifest.
  template <typename Write>
  void add_small_file(const std::string& name, Write write) {
    if (snapshot_.rank == 0) {
      add_file(name,
               [write = std::move(write)](const fs::path& path, ProgressMeter&) { write(path); });
      snapshot_.expected.push_back({.path = name, .is_small = true});
    }
  }

  void add_small_files() {
    const std::int64_t step = parts_.front().optimizer->steps;
    add_file(accelerate::random_states_file(snapshot_.rank),
             [step, values = random_states()](const fs::path& path, ProgressMeter&) {
               accelerate::write_random_states(path, step, values);
             });
    for (int rank = 0; rank < snapshot_.ranks; ++rank) {
      snapshot_.expected.push_back({.path = accelerate::random_states_file(rank), .rank = rank});
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].optimizer->has_schedule()) {
        add_small_file(accelerate::scheduler_file(static_cast<int>(i)),
                       [state = scheduler_state(*parts_[i].optimizer)](const fs::path& path) {
                         accelerate::write_scheduler(path, state);
                       });
      }
    }
    if (parts_.front().optimizer->scaler()) {
      add_small_file(accelerate::kScalerFile,
                     [state = parts_.front().optimizer->scaler()->state()](const fs::path& path) {
                       accelerate::write_scaler(path, state);
                     });
    }
    if (!snapshot_.state.program.empty()) {
      add_small_file(accelerate::custom_file(0),
                     [values = snapshot_.state.program](const fs::path& path) {
                       accelerate::write_custom(path, values);
                     });
    }
  }

  /// Returns the program's values of this rank, and the seeds of the runtime's stochastic rounding.
  [[nodiscard]] ProgramState random_states() const {
    ProgramState values = snapshot_.state.of_rank;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      values[seed_name(static_cast<int>(i))] = std::bit_cast<std::int64_t>(parts_[i].model->seed());
    }
    return values;
  }

  void add_manifest() {
    Manifest& manifest = snapshot_.manifest;
    const Manifest::Training first = training_of(*parts_.front().optimizer);
    manifest.writer = "acclaunch " ACC_VERSION;
    manifest.state_dict = words_of(sharding().state_dict_type);
    manifest.strategy = to_string(sharding().strategy);
    manifest.world_size = snapshot_.ranks;
    manifest.step = first.step;
    manifest.skipped_steps = first.skipped_steps;
    manifest.optimizer = first.optimizer;
    manifest.loss_scaler = first.loss_scaler;
    for (const Part& part : parts_.subspan(1)) {
      manifest.others.push_back(training_of(*part.optimizer));
    }
    const auto add_aliases = [&manifest](const auto& record) {
      for (const std::string& alias : record.aliases) {
        manifest.aliases[alias] = record.name;
      }
    };
    for (const Part& part : parts_) {
      for (const sharding::FlatParameter* flat : part.model->flats()) {
        std::ranges::for_each(flat->parameters(), add_aliases);
      }
      for (const auto* buffer : part.model->buffers()) {
        add_aliases(*buffer);
      }
    }
    if (!local_.empty()) {
      manifest.local_layout = format_local_layout(local_);
    }
  }

  std::span<const Part> parts_;
  const sharding::Context& context_;
  std::vector<LocalModel> local_;
  Snapshot snapshot_;
};

/// Copies begin at a multiple of this, as fast copies want them to.
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t nbytes) {
  return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Snapshot take_snapshot(std::span<const Part> parts, const SavedState& state) {
  return SnapshotBuilder(parts, state).build();
}

void copy_values(Snapshot& snapshot, std::span<const Part> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    detail::ModelState& model = *parts[i].model;
    std::size_t nbytes = 0;
    for (const HeldPtr& held : snapshot.held[i]) {
      nbytes += aligned(held->nbytes());
    }
    if (nbytes == 0) {
      continue;
    }
    device::Device& device = *model.context().device;
    device::MemoryPtr& memory = model.snapshot_memory;
    if (memory == nullptr || memory->nbytes() < nbytes) {
      memory.reset();
      memory = device.allocate_host(nbytes, "snapshot for a save");
    }
    device::Device& updater = *model.context().updater;
    device::Stream* side = nullptr;
    if (updater.kind() != settings::Device::cpu) {
      side = &model.late_copies.stream(updater);
      updater.wait(*side, *updater.record(updater.compute()));
    }
    auto copy = std::make_shared<sharding::LateCopy>(memory);
    std::size_t at = 0;
    for (const HeldPtr& held : snapshot.held[i]) {
      if (!held->is_copy()) {  // a second name of the same values
        held->copy_to(*memory, at, *copy, side);
        at += aligned(held->nbytes());
      }
    }
    device.record(device.compute())->synchronize();
    model.late_copies.add(copy);
    snapshot.copies.push_back(std::move(copy));
  }
}

}  // namespace acc::state_dict
