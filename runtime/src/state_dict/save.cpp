// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/pickle/source.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/forms.hpp"
#include "state_dict/model_files.hpp"
#include "state_dict/saved_arrays.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>
#include <vector>

// The save protocol. Every rank runs the same steps:
//
//  1. begin: rank 0 completes or removes leftovers of earlier saves and checks the target. Every
//     rank makes the temporary folder "<directory>.acc-tmp.<id>" if it does not exist yet. The id
//     was agreed on before, so that no message is needed.
//  2. Every rank writes and fsyncs its own files: shards and random states. Rank 0 also writes
//     `.metadata`, scheduler, scaler and the program's values. In the FULL form the ranks gather
//     tensors and rank 0 writes them.
//  3. settle: one all_reduce tells every rank whether all have succeeded. After a failure rank 0
//     removes the temporary folder, and all ranks throw.
//  4. commit, by rank 0 alone, while the other ranks continue training: it checks that every
//     expected file is visible with its planned size, writes the manifest, and exchanges the folder
//     with the target (AtomicFolder). A failure here aborts the process groups, which is how the
//     other ranks learn of it.
//
// A crash before the exchange leaves the older checkpoint and a temporary folder, which the next
// save removes. A crash after it leaves the new checkpoint.
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

/// Refuses names that no reader would return: not UTF-8, or reserved for the runtime.
void check_names(const ProgramState& values) {
  for (const auto& [name, value] : values) {
    if (!pickle::is_utf8(name)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("the name of a program's value is not UTF-8: '{}'", name));
    }
    if (name.starts_with(kSeedPrefix)) {
      throw Error(Errc::invalid_argument,
                  fmt::format("a program's value may not be named '{}': names that begin with {} "
                              "are reserved for the runtime",
                              name, kSeedPrefix));
    }
  }
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

/// One save, as seen by one rank.
class Save {
 public:
  Save(std::span<const Part> parts, const std::string& directory, const SavedState& state,
       std::uint32_t id, Existing existing)
      : parts_(parts),
        directory_(directory),
        state_(state),
        id_(id),
        existing_(existing),
        context_(parts.front().model->context()),
        rank_(context_.groups.world->rank()),
        ranks_(context_.groups.world->size()),
        meter_(shows_progress(*parts.front().model), Component::runtime, "saving " + directory,
               written_nbytes(parts)) {}

  void run() {
    try {
      attempt_([this] { begin(); });
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        write_part(parts_[i], static_cast<int>(i));
      }
      attempt_([this] { write_small_files(); });
      // A rank that finds its folder gone reports that instead of the write error it caused.
      attempt_.explain([this] { check_there(); });
      attempt_.settle(context_.groups, "saving " + directory_, [this] { abandon(); });
      if (rank_ == 0) {
        commit();
      }
    } catch (...) {
      abandon();
      throw;
    }
  }

 private:
  /// A file that must exist before the folder gets its name.
  struct Expected {
    std::string path;
    int rank = 0;  ///< the rank that writes it
    std::optional<std::uint64_t> nbytes = {};
    std::optional<std::uint32_t> crc32 = {};
    bool is_small = false;  ///< the manifest stores its checksum
  };

  [[nodiscard]] StateDictType form() const { return context_.settings.sharding.state_dict_type; }
  [[nodiscard]] fs::path in_folder(const std::string& path) const {
    return folder_->temporary() / path;
  }

  /// Throws if the temporary folder is gone, which explains why a file could not be written.
  void check_there() const {
    if (folder_) {
      folder_->check_there();
    }
  }

  void abandon() {
    if (rank_ == 0 && folder_) {
      folder_->abandon();
    }
  }

  // Names are checked here, inside of the attempt, so that an error on one rank reaches all.
  void begin() {
    folder_.emplace(directory_, accelerate::is_ours, id_, existing_);
    check_names(state_.program);
    check_names(state_.of_rank);
    if (rank_ == 0) {
      folder_->begin();
    }
    std::vector<std::string> folders;
    for (int i = 0; i < static_cast<int>(parts_.size()); ++i) {
      if (form() == StateDictType::sharded) {
        folders.push_back(accelerate::model_folder(i));
      }
      if (form() != StateDictType::full) {
        folders.push_back(accelerate::optimizer_folder(i));
      }
    }
    folder_->make(folders);
  }

  void write_part(const Part& part, int index) {
    switch (form()) {
      case StateDictType::sharded:
        attempt_([&] {
          write_folder(plan_model_folder(*part.model, index));
          write_folder(plan_optimizer_folder(part, index));
        });
        break;
      case StateDictType::local:
        attempt_([&] {
          write_local(*part.model, index);
          write_folder(plan_optimizer_folder(part, index));
        });
        break;
      case StateDictType::full: write_full(part, index); break;
    }
    if (context_.settings.sharding.save_16bit_model) {
      write_model(*part.model, accelerate::plain_bin_file(index),
                  part.model->context().precision.gathered);
    }
  }

  // Rank 0 computes the expected size of every rank's file from the plan; no rank reports it.
  void write_folder(const PlannedFolder& planned) {
    dcp::write_rank_file(in_folder(planned.name), planned.plan, rank_,
                         [&](const dcp::PlannedChunk& chunk, const torch::Sink& sink) {
                           planned.fill(chunk, counted(sink, meter_));
                         });
    if (rank_ != 0) {
      return;
    }
    const auto written = dcp::write_metadata_file(in_folder(planned.name), planned.plan);
    plans_[planned.name] = dcp::format_plan(planned.plan);
    for (int rank = 0; rank < ranks_; ++rank) {
      expected_.push_back({.path = planned.name + "/" + dcp::file_name(rank),
                           .rank = rank,
                           .nbytes = dcp::plan_file(planned.plan, rank).nbytes});
    }
    expected_.push_back({.path = planned.name + "/" + dcp::kMetadataFile,
                         .nbytes = written.nbytes,
                         .crc32 = written.crc32});
  }

  void write_local(detail::ModelState& model, int index) {
    LocalModel layout = local_layout_of(model);
    write_local_model(model, layout, in_folder(accelerate::local_model_file(index, rank_)), meter_);
    local_.push_back(std::move(layout));
    for (int rank = 0; rank < ranks_; ++rank) {
      expected_.push_back({.path = accelerate::local_model_file(index, rank), .rank = rank});
    }
  }

  /// Collective: a rank that has failed still takes part in the gathers.
  void write_full(const Part& part, int index) {
    write_model(*part.model,
                is_plain(context_.settings) ? accelerate::plain_model_file(index)
                                            : accelerate::model_file(index),
                std::nullopt);
    const std::string name = accelerate::optimizer_file(index);
    write_full_optimizer(part, folder_ ? in_folder(name) : fs::path(name), attempt_, meter_);
    expected_.push_back({.path = name});
  }

  void write_model(detail::ModelState& model, const std::string& name, std::optional<DType> dtype) {
    write_full_model(model, folder_ ? in_folder(name) : fs::path(name), dtype, attempt_, meter_);
    expected_.push_back({.path = name});
  }

  void write_small_files() {
    const std::int64_t step = parts_.front().optimizer->steps;
    accelerate::write_random_states(in_folder(accelerate::random_states_file(rank_)), step,
                                    random_states());
    for (int rank = 0; rank < ranks_; ++rank) {
      expected_.push_back({.path = accelerate::random_states_file(rank), .rank = rank});
    }
    if (rank_ != 0) {
      return;
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].optimizer->has_schedule()) {
        const std::string name = accelerate::scheduler_file(static_cast<int>(i));
        accelerate::write_scheduler(in_folder(name), scheduler_state(*parts_[i].optimizer));
        expected_.push_back({.path = name, .is_small = true});
      }
    }
    if (parts_.front().optimizer->scaler()) {
      accelerate::write_scaler(in_folder(accelerate::kScalerFile),
                               parts_.front().optimizer->scaler()->state());
      expected_.push_back({.path = accelerate::kScalerFile, .is_small = true});
    }
    if (!state_.program.empty()) {
      const std::string name = accelerate::custom_file(0);
      accelerate::write_custom(in_folder(name), state_.program);
      expected_.push_back({.path = name, .is_small = true});
    }
  }

  /// Returns the program's values of this rank, and the seeds of the runtime's stochastic rounding.
  [[nodiscard]] ProgramState random_states() const {
    ProgramState values = state_.of_rank;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      values[seed_name(static_cast<int>(i))] = std::bit_cast<std::int64_t>(parts_[i].model->seed());
    }
    return values;
  }

  /// Completes the save on rank 0, after all ranks have written. The other ranks have left by now.
  /// On failure the process groups are aborted, so that they learn of it.
  void commit() {
    try {
      check_there();
      Manifest manifest = manifest_of();
      for (const Expected& each : expected_) {
        manifest.files.push_back(found(each));
      }
      OutputFile file(in_folder(kManifestFile));
      file.write(format_manifest(manifest));
      file.close();
      folder_->commit();
    } catch (const std::exception& error) {
      abandon();  // first, because the launcher may kill this rank once its peers know
      context_.groups.abort(
          fmt::format("rank 0 could not complete {}: {}", directory_, error.what()));
      throw;
    }
  }

  // Checks that rank 0 sees a rank's file, which fails if the machines do not share the folder.
  [[nodiscard]] Manifest::File found(const Expected& each) const {
    const fs::path path = in_folder(each.path);
    std::error_code error;
    const std::uintmax_t nbytes = fs::file_size(path, error);
    if (error || (each.nbytes && nbytes != *each.nbytes)) {
      throw Error(
          Errc::disagreement,
          fmt::format("rank {} wrote no file {} that rank 0 can see: {}; all machines must share "
                      "the checkpoint's folder",
                      each.rank, path.string(),
                      error ? error.message()
                            : fmt::format("expected {} bytes, found {}", *each.nbytes, nbytes)),
          each.rank);
    }
    return {each.path, nbytes, each.is_small ? crc32_of(InputFile(path), 0, nbytes) : each.crc32};
  }

  static Manifest::Training training_of(detail::OptimizerState& optimizer) {
    return {optimizer.steps, optimizer.skipped_steps, optimizer.name(),
            optimizer.scaler() ? optimizer.scaler()->state() : std::map<std::string, double>()};
  }

  [[nodiscard]] Manifest manifest_of() const {
    const Manifest::Training first = training_of(*parts_.front().optimizer);
    Manifest manifest;
    manifest.writer = "acclaunch " ACC_VERSION;
    manifest.state_dict = words_of(form());
    manifest.strategy = to_string(context_.settings.sharding.strategy);
    manifest.world_size = ranks_;
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
    manifest.plans = plans_;
    if (!local_.empty()) {
      manifest.local_layout = format_local_layout(local_);
    }
    return manifest;
  }

  std::span<const Part> parts_;
  const std::string& directory_;
  const SavedState& state_;
  std::uint32_t id_;
  Existing existing_;
  const sharding::Context& context_;
  int rank_, ranks_;
  ProgressMeter meter_;
  Attempt attempt_;
  std::optional<AtomicFolder> folder_;
  std::vector<LocalModel> local_;
  std::vector<Expected> expected_;            ///< only rank 0's is used
  std::map<std::string, std::string> plans_;  ///< only rank 0's is used; of the DCP folders
};

}  // namespace

Part part_of(detail::ModelState& model, detail::OptimizerState& optimizer) {
  if (&optimizer.model() != &model) {
    throw Error(Errc::invalid_argument, "the optimizer belongs to another model");
  }
  model.finalize();
  return {&model, &optimizer};
}

void save(std::span<const Part> parts, const std::string& directory, const SavedState& state,
          std::uint32_t id, Existing existing) {
  if (parts.empty()) {
    throw Error(Errc::invalid_argument, "a checkpoint needs at least one model");
  }
  logger(Component::runtime).debug("saving to {}", directory);
  Save(parts, directory, state, id, existing).run();
}

}  // namespace acc::state_dict
