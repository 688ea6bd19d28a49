// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/open/open.hpp"

#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/catalog/parameter_names.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/local/local_layout.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "deepspeed/deepspeed.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Reads a file or folder of one format and adds it to `stored`.
void read_part(const InputPath& path, Format format, Stored& stored) {
  switch (format) {
    case Format::safetensors:
    case Format::safetensors_set:
      stored.catalog = read_safetensors(path);
      stored.provenance.format = "safetensors";
      return;
    case Format::torch_file:
      accelerate::read_torch_file(path, stored.catalog, stored.training, stored.provenance);
      return;
    case Format::dcp:
      dcp::read_folder(path, stored.catalog, stored.training, stored.provenance);
      return;
    case Format::dcp_hugging_face:
      dcp::read_hugging_face(path, stored.catalog, stored.provenance);
      return;
    case Format::deepspeed:
      deepspeed::read_checkpoint(path, stored.catalog, stored.training, stored.provenance);
      return;
    case Format::save_folder: break;
  }
  throw Error(Errc::config, path.string() + ": expected weights, found a " + to_string(format));
}

/// Reads a folder that Accelerate's save_state or we wrote.
class SaveFolder {
 public:
  SaveFolder(InputPath folder, int index, Stored& stored)
      : folder_(std::move(folder)), index_(index), stored_(stored) {
    stored_.manifest = read_manifest(folder_);
    if (!stored_.manifest) {
      static_cast<void>(folder_.names_of(accelerate::is_ours));
    }
  }

  // The manifest decides how the model is read: by its LOCAL layout, by its plan, or as any other
  // program's.
  void read_model() {
    const auto model = accelerate::find_model(folder_, index_);
    if (!model) {
      throw Error(Errc::config, folder_.string() + ": no model number " + std::to_string(index_) +
                                    ": looked for " + accelerate::model_folder(index_) + ", " +
                                    accelerate::model_file(index_) +
                                    " and the other names that Accelerate has given models");
    }
    if (model->filename() == accelerate::local_model_file(index_, 0)) {
      read_local(*model);
    } else if (!read_planned(*model)) {
      check(*model);
      read_part(*model, format_of(*model), stored_);
    }
  }

  void read_optimizer() {
    const auto optimizer = accelerate::find_optimizer(folder_, index_);
    if (!optimizer) {  // only the weights were saved, or DeepSpeed keeps both together
      check(folder_ / accelerate::optimizer_folder(index_));
      check(folder_ / accelerate::optimizer_file(index_));
      return;
    }
    if (stored_.manifest) {  // saves the readers from opening a step entry per parameter
      take_training(*stored_.manifest, stored_.training);
    }
    if (read_planned(*optimizer)) {
      return;
    }
    check(*optimizer);
    read_part(*optimizer, optimizer->is_folder() ? format_of(*optimizer) : Format::torch_file,
              stored_);
  }

  // The manifest is preferred. Without it, the loss scaler and the step come from Accelerate's
  // files.
  void read_training() {
    TrainingState& training = stored_.training;
    if (stored_.manifest) {
      take_training(*stored_.manifest, training);
    }
    const InputPath scaler = folder_ / accelerate::kScalerFile;
    if (training.loss_scaler.empty() && scaler.exists()) {
      check(scaler);
      training.loss_scaler = accelerate::read_scaler(scaler);
    }
    const InputPath scheduler = folder_ / accelerate::scheduler_file(index_);
    if (!training.step && scheduler.exists()) {
      check(scheduler);
      try {
        training.step = optimizer_steps(accelerate::read_scheduler(scheduler).steps);
      } catch (const Unreadable&) {  // of a class of the program: the step stays unknown
      }
    }
  }

 private:
  // Accelerate steps a scheduler once per process in each optimizer step, except with split_batches
  // (AcceleratedScheduler.step of accelerate/scheduler.py). The files do not contain split_batches,
  // but each process has written a file of random states.
  [[nodiscard]] std::int64_t optimizer_steps(std::int64_t scheduler_steps) const {
    int processes = 0;
    while ((folder_ / accelerate::random_states_file(processes)).exists()) {
      ++processes;
    }
    const bool once_per_process = processes > 0 && scheduler_steps % processes == 0;
    return once_per_process ? scheduler_steps / processes : scheduler_steps;
  }

  void take_training(const Manifest& manifest, TrainingState& training) const {
    const auto take = [&training](const auto& from) {
      training.step = from.step;
      training.skipped_steps = from.skipped_steps;
      training.optimizer = from.optimizer;
      training.loss_scaler = from.loss_scaler;
    };
    if (index_ == 0) {
      take(manifest);
    } else if (static_cast<std::size_t>(index_) <= manifest.others.size()) {
      take(manifest.others[static_cast<std::size_t>(index_) - 1]);
    }
  }

  // Checks the files below `path` against the manifest: that they exist in their size, and the
  // checksum of those that contain none themselves.
  void check(const InputPath& path) const {
    if (!stored_.manifest) {
      return;
    }
    const std::string part = path.path().lexically_relative(folder_).generic_string();
    check_sizes(*stored_.manifest, folder_, part);
    for (const Manifest::File& file : stored_.manifest->files) {
      if (is_in(file, part)) {
        check_file(file, folder_);
      }
    }
  }

  // Reads a DCP folder by the plan in the manifest, without its `.metadata`. Returns false if the
  // manifest has no plan for it, or one of another version; the caller then reads `.metadata`.
  bool read_planned(const InputPath& path) {
    const std::string name = path.path().lexically_relative(folder_).generic_string();
    if (!stored_.manifest || !stored_.manifest->plans.contains(name)) {
      return false;
    }
    std::map<std::string_view, std::uint64_t> listed;
    for (const Manifest::File& file : stored_.manifest->files) {
      if (is_in(file, name) && file.path.ends_with(".distcp")) {
        listed.emplace(std::string_view(file.path).substr(name.size() + 1), file.nbytes);
      }
    }
    const fs::path where = folder_ / kManifestFile;
    auto plan = dcp::parse_plan(stored_.manifest->plans.at(name), static_cast<int>(listed.size()),
                                where, "plans." + name);
    if (!plan) {
      return false;
    }
    std::vector<std::uint64_t> nbytes;
    for (int rank = 0; rank < plan->world_size; ++rank) {
      const std::string file = dcp::file_name(rank);
      const auto found = listed.find(file);
      if (found == listed.end()) {
        throw Error(Errc::config, fmt::format("{}: 'files' has no {}/{}, which the plan of {} has",
                                              where.string(), name, file, name));
      }
      nbytes.push_back(found->second);
    }
    dcp::read_planned_folder(path, std::move(*plan), nbytes, stored_.catalog, stored_.training,
                             stored_.provenance);
    return true;
  }

  void read_local(const InputPath& first) {
    if (!stored_.manifest || stored_.manifest->local_layout.empty()) {
      throw Unreadable(first.string() +
                       ": a rank's part of flat parameters (LOCAL_STATE_DICT); how they are cut is "
                       "written in " +
                       kManifestFile + ", which this folder does not have");
    }
    const fs::path path = folder_ / kManifestFile;
    const auto models = parse_local_layout(stored_.manifest->local_layout, path);
    if (static_cast<std::size_t>(index_) >= models.size()) {
      throw Error(Errc::config, path.string() + ": describes " + std::to_string(models.size()) +
                                    " models, model number " + std::to_string(index_) +
                                    " was requested");
    }
    std::set<std::string> names;
    for (int rank = 0; rank < stored_.manifest->world_size; ++rank) {
      names.insert(accelerate::local_model_file(index_, rank));
    }
    for (const Manifest::File& file : stored_.manifest->files) {
      if (names.contains(file.path)) {
        check_size(file, folder_);
        check_file(file, folder_);
      }
    }
    read_local_model(folder_, index_, models[static_cast<std::size_t>(index_)], stored_.catalog);
    stored_.provenance.format = "torch.save, one file per rank";
  }

  InputPath folder_;
  int index_;
  Stored& stored_;
};

// The last step of reading: names and index.
void finish(Stored& stored) {
  try {
    name_parameters(stored.catalog, stored.training);
  } catch (const Error& error) {
    throw Error(error.code(), stored.path.string() + ": " + error.what());
  }
}

// A save folder keeps the provenance of its model, but the writer and the world size of its
// manifest.
Stored open(const InputPath& path, Want want, int model_index) {
  Stored stored;
  stored.path = path;
  stored.format = format_of(stored.path);
  if (stored.format != Format::save_folder) {
    if (model_index != 0) {
      throw Error(Errc::config, stored.path.string() + ": a " + to_string(stored.format) +
                                    ", which has one model (index 0); model number " +
                                    std::to_string(model_index) + " was requested");
    }
    read_part(stored.path, stored.format, stored);
    finish(stored);
    return stored;
  }
  SaveFolder folder(stored.path, model_index, stored);
  folder.read_model();
  if (want == Want::everything) {
    const std::string format = std::exchange(stored.provenance.format, {});
    folder.read_optimizer();
    folder.read_training();
    if (!format.empty()) {
      stored.provenance.format = format;
    }
  }
  if (stored.manifest) {
    stored.provenance.writer = stored.manifest->writer;
    stored.provenance.world_size = stored.manifest->world_size;
  }
  finish(stored);
  return stored;
}

}  // namespace

// A path that is itself the checkpoint keeps its opened folder, so that several models can be read
// from one.
Stored open_checkpoint(const InputPath& path, Want want, int model_index) {
  try {
    const fs::path found = find_checkpoint(path);
    const InputPath from = found == path.path() ? path : InputPath(found);
    return read_unchanged(from, [&] { return open(from, want, model_index); });
  } catch (const fs::filesystem_error& error) {  // a folder that may not be read, a name too long
    throw Error(Errc::config, error.path1().string() + ": " + error.code().message());
  }
}

}  // namespace acc::checkpoint
