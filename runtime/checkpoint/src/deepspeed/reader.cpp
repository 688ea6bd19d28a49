// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/errors.hpp"
#include "catalog/group_values.hpp"
#include "catalog/record_table.hpp"
#include "deepspeed/checkpoint_files.hpp"
#include "deepspeed/deepspeed.hpp"
#include "deepspeed/flat_layout.hpp"
#include "deepspeed/module_states.hpp"
#include "deepspeed/rank_flats.hpp"

#include <algorithm>
#include <map>
#include <set>

// Reads a DeepSpeed checkpoint without copying elements: every parameter becomes a list of pieces
// of the ranks' flat arrays. The model states tell names and shapes, the optimizer states the flat
// arrays; flat_layout maps one to the other. docs/formats/deepspeed.md describes the files.
namespace acc::checkpoint::deepspeed {

namespace {

FlatSizes sizes_of(const OptimizerState& state) {
  FlatSizes sizes;
  for (const auto& flats : state.ranks) {
    auto& of_rank = sizes.emplace_back();
    for (const Flat& flat : flats) {
      of_rank.push_back(flat.master.shape[0]);
    }
  }
  return sizes;
}

/// The array from which a run is read, as `select(rank, flat)` returns it.
struct Source {
  std::uint32_t file;
  const torch::TensorRef* ref;
  std::string stored_name;
};

/// Returns the fragment of that name. Throws if it is missing or has another number of elements.
const torch::TensorRef& fragment(const std::map<std::string, const torch::TensorRef*>& fragments,
                                 const InputPath& path, const std::string& name,
                                 std::int64_t numel) {
  const auto found = fragments.find(name);
  if (found == fragments.end() || numel_of(found->second->shape) != numel) {
    throw Error(Errc::config, path.string() + ": key 'frozen_param_fragments." + name + "' " +
                                  (found == fragments.end()
                                       ? "is missing"
                                       : "has shape " + to_string(found->second->shape) +
                                             ", expected " + std::to_string(numel) + " elements"));
  }
  if (!found->second->strides.empty()) {
    throw Unreadable(path.string() + ": key 'frozen_param_fragments." + name +
                     "' is not in row-major order");
  }
  return *found->second;
}

/// Adds a checkpoint's tensors to a catalog.
class CatalogBuilder {
 public:
  CatalogBuilder(const CheckpointFiles& files, const ModuleStates& module, Catalog& catalog)
      : files_(files), module_(module), catalog_(catalog), records_(catalog) {}

  /// Adds master weights and moments.
  void add_trained(const OptimizerState& state) {
    for (const InputPath& path : files_.optimizers) {
      optimizer_files_.push_back(catalog_.file(path));
    }
    const std::string where = module_.path.string() + ": key 'param_shapes'";
    const FlatSizes sizes = sizes_of(state);
    if (module_.groups.size() != sizes.front().size()) {
      throw Error(Errc::config, where + " has " + std::to_string(module_.groups.size()) +
                                    " groups, but the optimizer's files have " +
                                    std::to_string(sizes.front().size()));
    }
    if (state.stage == 3) {
      NamedShapes parameters;
      for (const NamedShapes& group : module_.groups) {
        parameters.insert(parameters.end(), group.begin(), group.end());
      }
      const auto runs = partitioned_runs(parameters, sizes, where);
      std::size_t next = 0;
      for (std::size_t flat = 0; flat < module_.groups.size(); ++flat) {
        for (const auto& [name, shape] : module_.groups[flat]) {
          add_runs(name, shape, runs[next++], flat, state);
        }
      }
      return;
    }
    for (std::size_t flat = 0; flat < module_.groups.size(); ++flat) {
      const NamedShapes& group = module_.groups[flat];
      const auto& paddings = state.alignment_paddings;
      const auto runs =
          group_runs(group, flat, sizes,
                     flat < paddings.size() ? paddings[flat] : std::vector<std::int64_t>{}, where);
      for (std::size_t i = 0; i < group.size(); ++i) {
        add_runs(group[i].first, group[i].second, runs[i], flat, state);
      }
    }
  }

  void add_frozen(int stage) {
    if (module_.frozen.empty()) {
      return;
    }
    // Stages 1 and 2 store frozen parameters whole in one file; stage 3 cuts them among all ranks.
    std::vector<ModuleStates> others;
    std::vector<const ModuleStates*> ranks = {&module_};
    if (stage == 3) {
      others.reserve(files_.rank_modules.size());
      for (std::size_t rank = 1; rank < files_.rank_modules.size(); ++rank) {
        ranks.push_back(&others.emplace_back(read_module_states(files_.rank_modules[rank])));
        if (others.back().global_steps != module_.global_steps) {
          throw Error(Errc::config, others.back().path.string() + ": has made " +
                                        std::to_string(others.back().global_steps) +
                                        " steps, but rank 0's file " +
                                        std::to_string(module_.global_steps) +
                                        ": the files are of two saves");
        }
      }
    }
    std::vector<std::uint32_t> numbers;
    std::vector<std::map<std::string, const torch::TensorRef*>> fragments;
    for (const ModuleStates* rank : ranks) {
      numbers.push_back(catalog_.file(rank->path));
      auto& by_name = fragments.emplace_back();
      for (const auto& [name, ref] : rank->fragments) {
        by_name.emplace(name, &ref);
      }
    }
    for (const auto& [name, shape] : module_.frozen) {
      const std::int64_t numel = numel_of(shape);
      const std::int64_t part = partition_numel(numel, static_cast<std::int64_t>(ranks.size()));
      std::vector<FlatRun> runs;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto begin = static_cast<std::int64_t>(rank) * part;
        if (begin < numel) {
          runs.push_back({begin, std::min(part, numel - begin), rank, 0, 0});
        }
      }
      push(
          assemble(name, "param", shape, runs, 0, [&, &name = name](std::size_t rank, std::size_t) {
            return Source{numbers[rank], &fragment(fragments[rank], ranks[rank]->path, name, part),
                          "frozen_param_fragments." + name};
          }));
    }
  }

  /// Adds what only "module" has: buffers, and in stages 0 to 2 everything without an fp32 form.
  void add_module(bool buffers_alone) {
    std::set<std::string> aliases;
    for (const auto& [second, name] : module_.shared) {
      if (names_.contains(name)) {
        aliases.insert(second);
      }
    }
    // Names that share their bytes in "module" are tied, so they share their fp32 form too.
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> by_bytes;
    for (const auto& [name, ref] : module_.module) {
      if (const auto found = names_.find(name); found != names_.end() && ref.bytes.nbytes > 0) {
        by_bytes.emplace(std::pair(ref.bytes.offset, ref.bytes.nbytes), found->second);
      }
    }
    const auto file = catalog_.file(module_.path);
    for (const auto& [name, ref] : module_.module) {
      if (names_.contains(name) || aliases.contains(name) ||
          (buffers_alone && !module_.buffers.contains(name))) {
        continue;
      }
      const auto same = by_bytes.find({ref.bytes.offset, ref.bytes.nbytes});
      if (same != by_bytes.end() && catalog_.tensors[same->second].shape == ref.shape) {
        push_alias(name, same->second);
      } else {
        push(records_.tensor(file, ref, name, "param", "module." + name));
      }
    }
  }

  void add_shared() {
    for (const auto& [second, name] : module_.shared) {
      const auto found = names_.find(name);
      if (found != names_.end() && !names_.contains(second)) {
        push_alias(second, found->second);
      }
    }
  }

 private:
  /// flat: number of the array of its group, for a parameter without elements, which has no runs.
  void add_runs(const std::string& name, const Shape& shape, const std::vector<FlatRun>& runs,
                std::size_t flat, const OptimizerState& state) {
    const char* const key =
        state.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    push(assemble(name, "param", shape, runs, flat, [&](std::size_t rank, std::size_t in) {
      return Source{optimizer_files_[rank], &state.ranks[rank][in].master,
                    key + ("." + std::to_string(in))};
    }));
    const FlatRun first = runs.empty() ? FlatRun{.flat = flat} : runs.front();
    for (const auto& [kind, ref] : state.ranks[first.rank][first.flat].moments) {
      push(assemble(
          name, kind, shape, runs, flat, [&, &kind = kind](std::size_t rank, std::size_t in) {
            const auto& moments = state.ranks[rank][in].moments;
            const auto found = moments.find(kind);
            if (found == moments.end()) {
              throw Error(Errc::config, files_.optimizers[rank].string() + ": flat group " +
                                            std::to_string(in) + " has no " + kind + " of " + name);
            }
            return Source{optimizer_files_[rank], &found->second,
                          "state." + std::to_string(in) + "." + kind};
          }));
    }
  }

  /// Makes a tensor of the runs. `select(rank, flat)` returns the array of a run, and that of rank
  /// 0 and `flat` for a tensor without elements, which has its dtype.
  template <typename Select>
  StoredTensor assemble(const std::string& name, const std::string& kind, const Shape& shape,
                        const std::vector<FlatRun>& runs, std::size_t flat, const Select& select) {
    StoredTensor tensor{
        .name = name, .kind = kind, .stored_name = name, .shape = shape, .pieces = {}};
    if (runs.empty()) {
      tensor.dtype = select(0, flat).ref->dtype;
    }
    for (const FlatRun& run : runs) {
      // A run is contiguous in its flat array, and so are the boxes that it covers.
      const Source source = select(run.rank, run.flat);
      tensor.dtype = source.ref->dtype;
      tensor.stored_name = source.stored_name;
      const auto element = static_cast<std::int64_t>(size_of(source.ref->dtype));
      std::int64_t at = run.at;
      for (Box& box : boxes_of_range(shape, run.begin, run.begin + run.numel)) {
        const std::int64_t numel = box.numel();
        tensor.pieces.push_back(
            {.box = std::move(box),
             .file = source.file,
             .offset = source.ref->bytes.offset + static_cast<std::uint64_t>(at * element),
             .nbytes = static_cast<std::uint64_t>(numel * element),
             .packing = Packing::raw,
             .record = records_.record(source.file, source.ref->bytes, source.stored_name)});
        at += numel;
      }
    }
    return tensor;
  }

  void push(StoredTensor tensor) {
    if (tensor.kind == "param") {
      names_.emplace(tensor.name, catalog_.tensors.size());
    }
    catalog_.tensors.push_back(std::move(tensor));
  }
  /// Adds the same data under another name.
  void push_alias(const std::string& name, std::size_t of) {
    StoredTensor alias = catalog_.tensors[of];
    alias.name = name;
    push(std::move(alias));
  }

  const CheckpointFiles& files_;
  const ModuleStates& module_;
  Catalog& catalog_;
  RecordTable records_;
  std::vector<std::uint32_t> optimizer_files_;  ///< numbers in the catalog, by rank
  std::map<std::string, std::size_t> names_;    ///< numbers in the catalog of parameters
};

/// Returns the optimizer's groups, with the names of the parameters in their flat arrays.
std::vector<StoredGroup> named_groups(const OptimizerState& state, const ModuleStates& module) {
  std::vector<StoredGroup> groups = state.groups;
  for (std::size_t flat = 0; flat < module.groups.size(); ++flat) {
    for (const auto& [name, shape] : module.groups[flat]) {
      groups[state.group_of[flat]].parameters.push_back(name);
    }
  }
  return groups;
}

/// Returns the kinds of state that the flat arrays have.
std::set<std::string> kinds_of(const OptimizerState& state) {
  std::set<std::string> kinds;
  for (const Flat& flat : state.ranks.front()) {
    for (const auto& [kind, values] : flat.moments) {
      kinds.insert(kind);
    }
  }
  return kinds;
}

void read_zero(const CheckpointFiles& files, const ModuleStates& module, CatalogBuilder& builder,
               TrainingState& training, Provenance& provenance) {
  const OptimizerState state = read_optimizer_files(files);
  const bool is_stage_3 = state.stage == 3;
  if (is_stage_3 && files.rank_modules.size() != files.optimizers.size()) {
    throw Error(Errc::config, files.folder.string() + ": has the optimizer states of " +
                                  std::to_string(files.optimizers.size()) +
                                  " ranks and the model states of " +
                                  std::to_string(files.rank_modules.size()));
  }
  builder.add_trained(state);
  builder.add_frozen(state.stage);
  builder.add_module(is_stage_3);
  builder.add_shared();
  training.groups = named_groups(state, module);
  training.optimizer = class_of(kinds_of(state), state.groups);
  training.loss_scaler = state.loss_scaler;
  training.unread.insert(training.unread.end(), state.unread.begin(), state.unread.end());
  if (state.step) {
    training.step = state.step;
  }
  provenance.format = "DeepSpeed ZeRO " + std::to_string(state.stage);
  provenance.world_size = static_cast<int>(files.optimizers.size());
}

}  // namespace

void read_checkpoint(const InputPath& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance) {
  const CheckpointFiles files = list_files(path);
  if (files.module && !files.rank_modules.empty()) {
    throw Error(Errc::config, files.folder.string() + ": has " + files.module->filename().string() +
                                  " (stages 0 to 2) and " +
                                  files.rank_modules.front().filename().string() +
                                  " (stage 3): two checkpoints were saved over each other");
  }
  const ModuleStates module =
      read_module_states(files.module ? *files.module : files.rank_modules.front());
  provenance.writer = module.writer;
  // global_steps counts attempts; those that an overflow skipped did not update anything.
  training.step = std::max<std::int64_t>(module.global_steps - module.skipped_steps, 0);
  training.skipped_steps = module.skipped_steps;
  training.buffers = module.buffers;
  training.unread = module.unread;
  CatalogBuilder builder(files, module, catalog);
  if (!files.optimizers.empty()) {
    if (!module.has_zero) {
      throw Error(Errc::config, module.path.string() + ": key 'param_shapes' is missing, but " +
                                    files.optimizers.front().filename().string() +
                                    " holds flat groups");
    }
    read_zero(files, module, builder, training, provenance);
  } else {
    if (module.has_zero) {
      throw Error(Errc::config, files.folder.string() +
                                    ": the *_optim_states.pt, which hold the fp32 weights, are "
                                    "missing");
    }
    builder.add_module(false);
    if (module.has_optimizer) {
      training.unread.push_back("the state of the optimizer in " + module.path.filename().string() +
                                ", with fp32 weights if the run had 16-bit ones, which DeepSpeed "
                                "stores without names (stage 0)");
    }
    provenance.format = "DeepSpeed";
  }
  catalog.index();
}

}  // namespace acc::checkpoint::deepspeed
