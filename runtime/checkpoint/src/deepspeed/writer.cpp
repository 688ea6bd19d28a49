// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/object_store.hpp"
#include "acc/base/optimizer_rules.hpp"
#include "catalog/group_values.hpp"
#include "deepspeed/archive_builder.hpp"
#include "deepspeed/deepspeed.hpp"
#include "deepspeed/export_plan.hpp"
#include "deepspeed/flat_layout.hpp"
#include "deepspeed/module_states.hpp"

#include <algorithm>
#include <map>

namespace acc::checkpoint::deepspeed {

namespace fs = std::filesystem;

// Writes what DeepSpeed reads back: its merge script zero_to_fp32.py, and its engine in a run of
// the same stage and world size. Keys that neither of them reads are left out or empty. Each rank's
// file is written on its own, so that memory stays bounded by one buffer.
namespace {

/// The version of DeepSpeed whose files are imitated.
constexpr const char* kVersion = "0.19.8";

void push_flat(ArchiveBuilder& out, const FlatParts& parts) {
  out.push(parts, Dtype::f32, {total_numel(parts)});
}

void push_shape(pickle::Writer& pickle, const Shape& shape) {
  pickle.global("torch", "Size").begin_tuple().begin_tuple();
  for (const std::int64_t size : shape) {
    pickle.integer(size);
  }
  pickle.end_tuple().end_tuple().reduce();
}

// The order of the dict is the order of the parameters in the flat array.
void push_shapes(pickle::Writer& pickle, const std::vector<const StoredTensor*>& tensors) {
  pickle.begin_ordered_dict();
  for (const StoredTensor* tensor : tensors) {
    pickle.text(tensor->name);
    push_shape(pickle, tensor->shape);
  }
  pickle.end_ordered_dict();
}

FlatParts whole_tensor(const StoredTensor& tensor) {
  return {{&tensor, 0, numel_of(tensor.shape)}};
}

/// Writes the files of one tag.
class TagWriter {
 public:
  TagWriter(fs::path folder, const Catalog& catalog, TensorReader& reader,
            const TrainingState& training, const ExportOptions& options)
      : folder_(std::move(folder)),
        catalog_(catalog),
        reader_(reader),
        training_(training),
        ranks_(options.world_size),
        is_stage_3_(options.stage == 3),
        stage_(options.stage),
        plan_(plan_export(catalog, training)) {}

  void write() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      write_optimizer(rank);
      if (is_stage_3_ || rank == 0) {
        write_module(rank);
      }
    }
  }

 private:
  void write_optimizer(int rank) const {
    ArchiveBuilder out(reader_);
    pickle::Writer& pickle = out.pickle();
    pickle.begin_dict().text("optimizer_state_dict").begin_dict();
    pickle.text("zero_stage").integer(stage_);
    pickle.text("loss_scaler");
    push_loss_scaler(pickle);
    pickle.text("dynamic_loss_scale").boolean(!training_.loss_scaler.empty());
    pickle.text("overflow").boolean(false);
    if (is_stage_3_) {
      pickle.text("partition_count").integer(ranks_).text("optimizer_state_dict");
      push_base_state(out, rank);
      pickle.text("fp32_flat_groups");
      push_masters(out, rank);
    } else {
      pickle.text("clip_grad").real(0.0);
      push_layout(pickle, rank);
      pickle.text("base_optimizer_state");
      push_base_state(out, rank);
      pickle.text("single_partition_of_fp32_groups");
      push_masters(out, rank);
    }
    pickle.text("ds_version").text(kVersion).end_dict();
    pickle.text("ds_config").begin_dict().end_dict();
    pickle.text("ds_version").text(kVersion).end_dict();
    out.write(folder_ / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"));
  }

  // Keys that DeepSpeed's loader expects are present even if they are empty.
  void write_module(int rank) const {
    ArchiveBuilder out(reader_);
    pickle::Writer& pickle = out.pickle();
    pickle.begin_dict().text("module").begin_ordered_dict();
    is_stage_3_ ? push_placeholders(out) : push_whole_module(out);
    pickle.end_ordered_dict().text("buffer_names").begin_list();
    for (const StoredTensor* tensor : plan_.buffers) {
      pickle.text(tensor->name);
    }
    pickle.end_list().text("optimizer").none().text("param_shapes").begin_list();
    for (const ExportGroup& group : plan_.groups) {
      push_shapes(pickle, group.parameters);
    }
    pickle.end_list().text("frozen_param_shapes");
    push_shapes(pickle, plan_.frozen);
    pickle.text("frozen_param_fragments");
    push_fragments(out, rank);
    pickle.text("shared_params").begin_dict();
    for (const auto& [second, name] : plan_.shared) {
      pickle.text(second).text(name);
    }
    pickle.end_dict();
    for (const char* const absent : {"lr_scheduler", "data_sampler", "random_ltd"}) {
      pickle.text(absent).none();
    }
    push_counts(pickle);
    pickle.text("ds_config").begin_dict().end_dict();
    pickle.text("ds_version").text(kVersion);
    pickle.text(kWriterKey).text("acclaunch " ACC_VERSION).end_dict();
    out.write(folder_ /
              (is_stage_3_ ? "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt"
                           : std::string("mp_rank_00_model_states.pt")));
  }

  // A parameter's step is stored once per flat array; SGD has none.
  void push_base_state(ArchiveBuilder& out, int rank) const {
    pickle::Writer& pickle = out.pickle();
    pickle.begin_dict().text("state").begin_dict();
    for (std::size_t i = 0; i < plan_.groups.size() && !plan_.kinds.empty(); ++i) {
      pickle.integer(static_cast<std::int64_t>(i)).begin_dict();
      if (counts_steps(training_.optimizer)) {
        pickle.text("step");
        out.push_scalar(static_cast<float>(training_.step.value_or(0)));
      }
      for (const std::string& kind : plan_.kinds) {
        pickle.text(kind);
        push_flat(out, part(plan_.groups[i], kind, rank));
      }
      pickle.end_dict();
    }
    pickle.end_dict().text("param_groups").begin_list();
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
      push_group(pickle, i);
    }
    pickle.end_list().end_dict();
  }

  void push_masters(ArchiveBuilder& out, int rank) const {
    out.pickle().begin_list();
    for (const ExportGroup& group : plan_.groups) {
      push_flat(out, part(group, "param", rank));
    }
    out.pickle().end_list();
  }

  /// Pushes the keys by which stages 1 and 2 describe their flat arrays.
  void push_layout(pickle::Writer& pickle, int rank) const {
    pickle.text("group_paddings").begin_list();
    for (const ExportGroup& group : plan_.groups) {
      pickle.integer(group_partition(group.numel, ranks_) -
                     total_numel(part(group, "param", rank)));
    }
    pickle.end_list().text("param_alignment_paddings").begin_list();
    for (const ExportGroup& group : plan_.groups) {
      pickle.begin_list();
      for (std::size_t i = 0; i < group.parameters.size(); ++i) {
        pickle.integer(0);
      }
      pickle.end_list();
    }
    pickle.end_list().text("partition_count").begin_list();
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
      pickle.integer(ranks_);
    }
    pickle.end_list();
  }

  /// Pushes the loss scaler: for torch.load an object of DeepSpeed's class, for our reader an
  /// object with these attributes.
  void push_loss_scaler(pickle::Writer& pickle) const {
    const std::map<std::string, double>& state = training_.loss_scaler;
    const auto value = [&state](const char* name, double otherwise) {
      const auto found = state.find(name);
      return found == state.end() ? otherwise : found->second;
    };
    const auto integer = [&value](const char* name, std::int64_t otherwise) {
      return static_cast<std::int64_t>(value(name, static_cast<double>(otherwise)));
    };
    const bool is_dynamic = !state.empty();
    pickle
        .global("deepspeed.runtime.fp16.loss_scaler",
                is_dynamic ? "DynamicLossScaler" : "LossScaler")
        .begin_tuple()
        .end_tuple()
        .new_object();
    pickle.begin_dict();
    pickle.text("cur_scale").real(value("scale", 1.0));
    pickle.text("dynamic").boolean(is_dynamic);
    if (is_dynamic) {
      pickle.text("cur_iter").integer(integer("iteration", 0));
      pickle.text("last_overflow_iter").integer(integer("last_overflow", -1));
      pickle.text("cur_hysteresis").integer(integer("hysteresis", 1));
      pickle.text("scale_factor").real(2.0);
      pickle.text("scale_window").integer(1000);
      pickle.text("min_scale").real(1.0);
      pickle.text("delayed_shift").integer(std::max<std::int64_t>(integer("hysteresis", 1), 1));
      pickle.text("consecutive_hysteresis").boolean(false);
      pickle.text("raise_error_at_min_scale").boolean(true);
      pickle.text("dtype").global("torch", "float16");
    }
    pickle.end_dict().build();
  }

  /// Pushes a parameter group as the base optimizer has it. Its only parameter is the flat array.
  void push_group(pickle::Writer& pickle, std::size_t index) const {
    const StoredGroup& group = plan_.groups[index].stored;
    pickle.begin_dict();
    if (find_optimizer_rule(training_.optimizer) != nullptr) {
      for_each_group_value(training_.optimizer, group,
                           [&pickle](const std::string& key, const PushValue& push) {
                             if (key != "params" && key != "param_names") {
                               pickle.text(key);
                               push(pickle);
                             }
                           });
    }
    pickle.text("params").begin_list().integer(static_cast<std::int64_t>(index)).end_list();
    pickle.end_dict();
  }

  /// Pushes all weights in fp32. A run of any dtype can round them, as it rounds its master
  /// weights.
  void push_whole_module(ArchiveBuilder& out) const {
    struct Storage {
      int number;
      Dtype dtype;
      Shape shape;
    };
    std::map<std::string, Storage> storages;
    const auto push = [&](const StoredTensor* tensor, Dtype dtype) {
      out.pickle().text(tensor->name);
      const int number = out.push(whole_tensor(*tensor), dtype, tensor->shape);
      storages.emplace(tensor->name, Storage{number, dtype, tensor->shape});
    };
    for (const ExportGroup& group : plan_.groups) {
      for (const StoredTensor* tensor : group.parameters) {
        push(tensor, Dtype::f32);
      }
    }
    for (const auto* tensors : {&plan_.frozen, &plan_.buffers}) {
      for (const StoredTensor* tensor : *tensors) {
        push(tensor, tensor->dtype);
      }
    }
    for (const auto& [second, name] : plan_.shared) {
      const Storage& storage = storages.at(name);
      out.pickle().text(second);
      out.push_again(storage.number, storage.dtype, storage.shape);
    }
  }

  /// Pushes the module of stage 3: empty tensors for parameters, and the buffers.
  void push_placeholders(ArchiveBuilder& out) const {
    int storage = -1;
    const auto push = [&](const std::string& name) {
      out.pickle().text(name);
      if (storage < 0) {
        storage = out.push({}, Dtype::f32, {0});
      } else {
        out.push_again(storage, Dtype::f32, {0});
      }
    };
    for (const ExportGroup& group : plan_.groups) {
      for (const StoredTensor* tensor : group.parameters) {
        push(tensor->name);
      }
    }
    for (const StoredTensor* tensor : plan_.frozen) {
      push(tensor->name);
    }
    for (const auto& [second, name] : plan_.shared) {
      push(second);
    }
    for (const StoredTensor* tensor : plan_.buffers) {
      out.pickle().text(tensor->name);
      out.push(whole_tensor(*tensor), tensor->dtype, tensor->shape);
    }
  }

  // Frozen parameters are stored whole in stages 1 and 2, and as this rank's part in stage 3.
  void push_fragments(ArchiveBuilder& out, int rank) const {
    out.pickle().begin_ordered_dict();
    for (const StoredTensor* tensor : plan_.frozen) {
      out.pickle().text(tensor->name);
      const std::int64_t numel = numel_of(tensor->shape);
      if (is_stage_3_) {
        const FlatParts parts = tensor_part(tensor, numel, rank, ranks_);
        out.push(parts, tensor->dtype, {total_numel(parts)});
      } else {
        out.push(whole_tensor(*tensor), tensor->dtype, tensor->shape);
      }
    }
    out.pickle().end_ordered_dict();
  }

  // global_steps counts skipped steps, our step does not.
  void push_counts(pickle::Writer& pickle) const {
    pickle.text("skipped_steps").integer(training_.skipped_steps);
    pickle.text("global_steps").integer(training_.step.value_or(0) + training_.skipped_steps);
    pickle.text("dp_world_size").integer(ranks_);
    pickle.text("mp_world_size").integer(1);
  }

  [[nodiscard]] FlatParts part(const ExportGroup& group, const std::string& kind, int rank) const {
    return is_stage_3_ ? partitioned_part(group, catalog_, kind, rank, ranks_)
                       : group_part(group, catalog_, kind, rank, ranks_);
  }

  fs::path folder_;
  const Catalog& catalog_;
  TensorReader& reader_;
  const TrainingState& training_;
  int ranks_;
  bool is_stage_3_;
  int stage_;
  ExportPlan plan_;
};

}  // namespace

// `latest` is written last, so that a crash leaves a folder without it. The caller's folder is not
// yet visible under its name anyway.
void write_checkpoint(const fs::path& folder, const Catalog& catalog, TensorReader& reader,
                      const TrainingState& training, const ExportOptions& options) {
  const std::string tag =
      options.tag.empty() ? "global_step" + std::to_string(training.step.value_or(0)) : options.tag;
  if (options.stage < 1 || options.stage > 3) {
    throw Error(Errc::invalid_argument,
                "export for DeepSpeed: the stage must be 1, 2 or 3, and is " +
                    std::to_string(options.stage));
  }
  if (options.world_size < 1) {
    throw Error(Errc::invalid_argument,
                "export for DeepSpeed: the world size must be at least 1, and is " +
                    std::to_string(options.world_size));
  }
  if (tag.find('/') != std::string::npos || tag == "." || tag == "..") {
    throw Error(Errc::invalid_argument,
                "export for DeepSpeed: the tag must be a name, and is '" + tag + "'");
  }
  std::error_code error;
  if (!is_object(folder)) {
    fs::create_directories(folder / tag, error);
  }
  if (error) {
    throw Error(Errc::config, (folder / tag).string() + ": " + error.message());
  }
  TagWriter(folder / tag, catalog, reader, training, options).write();
  OutputFile latest(folder / "latest");
  latest.write(std::string_view(tag));
  latest.close();
}

}  // namespace acc::checkpoint::deepspeed
