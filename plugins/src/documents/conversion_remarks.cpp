// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/setting_rows.hpp"
#include "documents/config_writer.hpp"
#include "documents/conversion.hpp"

namespace acc::documents {

using settings::operator""_key;  // NOLINT(misc-unused-using-decls): it sees no use in literals
namespace {

using LossInForm = settings::Loss settings::SettingRow::*;

LossInForm loss_between_versions(int target) {
  return target == 1 ? &settings::SettingRow::lost_in_fsdp1 : &settings::SettingRow::lost_in_fsdp2;
}

// Conversion warnings: every setting that has no counterpart in the target form, and every setting
// whose counterpart behaves differently. A warning begins with the place and the value of the
// setting.

class Remarks {
 public:
  Remarks(const ConversionSource& source, ConfigForm form)
      : source_(source), settings_(source.settings), to_fsdp_(is_fsdp(form)), form_(form) {}

  std::vector<std::string> list() {
    if (is_fsdp(source_.form) && to_fsdp_) {
      between_versions();
    } else if (is_fsdp(source_.form)) {
      from_fsdp();
    } else if (to_fsdp_) {
      from_deepspeed();
    } else if (form_ == ConfigForm::deepspeed_json) {
      clipping();
    }
    return std::move(lines_);
  }

 private:
  void add(std::string line) { lines_.push_back(std::move(line)); }

  /// Adds a warning about a setting: its place and value, then `text`.
  void about(settings::SettingKey key, const std::string& text) {
    const settings::Source& given = settings_.source(key);
    const bool in_file = given.kind == settings::Source::Kind::file ||
                         given.kind == settings::Source::Kind::deepspeed_file;
    add((in_file ? given.where + ": " : "") + name_in_file(key) + " " +
        (settings_.has(key) ? settings_.text(key) : "(not given)") + " " + text);
  }

  /// Returns the key with which the file gives the setting. In a DeepSpeed file this is a path such
  /// as zero_optimization.offload_param.device, because one line may hold several keys.
  [[nodiscard]] std::string name_in_file(settings::SettingKey key) const {
    const std::string_view path = settings::find_setting(key.name())->json;
    const bool by_path =
        !path.empty() && settings_.source(key).kind == settings::Source::Kind::deepspeed_file;
    return std::string(by_path ? path : key.name());
  }

  /// Adds a warning for each given setting without a counterpart, unless its value is quiet.
  void add_losses(LossInForm form) {
    for (const settings::SettingRow& row : settings::settings_table()) {
      const auto& [reason, quiet_value] = row.*form;
      if (reason.empty() || !settings_.given(row)) {
        continue;
      }
      const std::string quiet =
          quiet_value ? std::string(*quiet_value) : settings::Settings().canonical(row);
      if (lower(settings_.canonical(row)) != lower(quiet)) {
        about(row, "has no counterpart: " + std::string(reason));
      }
    }
  }

  /// Adds a warning about the setting that says what is sharded.
  void about_strategy(const std::string& text) { about(strategy_key(source_.form), text); }

  // From FSDP to DeepSpeed.
  void from_fsdp() {
    fsdp_strategy();
    fsdp_offload();
    fsdp_loading();
    fsdp_checkpoints();
    precision();
    clipping();
    add_losses(&settings::SettingRow::lost_in_deepspeed);
  }

  void fsdp_strategy() {
    const settings::ShardingSettings& sharding = source_.sharding;
    const std::string groups = std::to_string(source_.shard_size);
    if (sharding.strategy == settings::Strategy::shard_grad_op) {
      about_strategy(
          "becomes stage 2, which always keeps full parameters on every rank; FSDP shards them "
          "between steps and gathers them in each step");
    } else if (sharding.strategy == settings::Strategy::hybrid_shard) {
      about_strategy(
          "becomes stage 3 with zero_hpz_partition_size " + groups + ": each group of " + groups +
          " ranks keeps only a secondary copy of the weights; gradients, optimizer state "
          "and the primary copy are sharded over all ranks, which needs less memory and "
          "sends more data between groups");
    } else if (sharding.strategy == settings::Strategy::hybrid_shard_zero2) {
      about_strategy(
          "has no counterpart (MiCS was removed from DeepSpeed); stage 2 shards "
          "gradients and optimizer state over all ranks, not within groups of " +
          groups);
    }
    if (sharding.reshard_size > 0) {
      about_strategy("becomes zero_hpz_partition_size " + std::to_string(sharding.reshard_size) +
                     ", which gathers weights within such a group from the second time on");
    }
  }

  /// FSDP offloads parameters, gradients and optimizer state together; DeepSpeed separately, and
  /// parameters in stage 3 only.
  void fsdp_offload() {
    const settings::ShardingSettings deepspeed = deepspeed_sharding(source_);
    if (source_.sharding.offload_param == settings::OffloadDevice::none) {
      return;
    }
    if (deepspeed.offload_param != settings::OffloadDevice::none) {
      about("fsdp_offload_params"_key,
            "becomes both offload_param_device and "
            "offload_optimizer_device cpu, which are separate settings in DeepSpeed");
    } else if (deepspeed.offload_optimizer != settings::OffloadDevice::none) {
      about("fsdp_offload_params"_key,
            "becomes offload_optimizer_device cpu only: DeepSpeed offloads parameters with stage 3 "
            "only");
    } else {
      about("fsdp_offload_params"_key, "has no counterpart with stage 0");
    }
  }

  void fsdp_loading() {
    if (source_.sharding.cpu_ram_efficient_loading && !deepspeed_sharding(source_).zero3_init) {
      about("fsdp_cpu_ram_efficient_loading"_key,
            "has no counterpart: zero3_init_flag works with stage 3 only");
    }
  }

  void fsdp_checkpoints() {
    switch (source_.sharding.state_dict_type) {
      case settings::StateDictType::full:
        about("fsdp_state_dict_type"_key,
              deepspeed_sharding(source_).save_16bit_model
                  ? "becomes zero3_save_16bit_model: one file in 16 bits, while FSDP saves the "
                    "data type of the shards"
                  : "needs no counterpart below stage 3, where every rank has all parameters; "
                    "optimizer state is saved per rank");
        break;
      case settings::StateDictType::sharded:
        about("fsdp_state_dict_type"_key,
              "becomes DeepSpeed's own checkpoint, which zero_to_fp32.py merges, not a checkpoint "
              "for merge-weights");
        break;
      case settings::StateDictType::local:
        about("fsdp_state_dict_type"_key,
              "has no counterpart; DeepSpeed saves its own format, one file per rank");
        break;
    }
  }

  void precision() {
    about("mixed_precision"_key,
          source_.sharding.is_mixed()
              ? "means the same: fp32 shards and optimizer state, 16-bit compute"
              : std::string("changes its meaning for a model that is loaded in 16 bits: "
                            "FSDP keeps shards, computes and steps in the loaded type") +
                    (to_fsdp_ ? ""
                              : "; DeepSpeed needs bf16 or fp16 switched on for it and "
                                "then keeps fp32 shards and optimizer state"));
  }

  void clipping() {
    if (!settings_.given("gradient_clipping"_key)) {
      add("gradient_clipping is not given: DeepSpeed then clips at 1.0 with Accelerate's file, and "
          "not at all with its own; with FSDP the program decides");
    }
  }

  // From DeepSpeed to FSDP.
  void from_deepspeed() {
    deepspeed_stage();
    deepspeed_groups();
    deepspeed_offload();
    add("fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP is added, because FSDP gathers units; "
        "without fsdp_transformer_layer_cls_to_wrap the units are the classes that the model "
        "names");
    deepspeed_checkpoints();
    precision();
    deepspeed_training();
    add_losses(&settings::SettingRow::lost_in_fsdp);
    for (const DeepSpeedFile::Key& key : source_.deepspeed_file.left_to_program) {
      add(key.where + ": " + key.path + (key.text.empty() ? "" : " ") + key.text +
          " has no counterpart: with FSDP the program has to do it");
    }
  }

  void deepspeed_stage() {
    if (source_.sharding.strategy == settings::Strategy::shard_optimizer) {
      about_strategy("becomes " + nearest("SHARD_GRAD_OP") +
                     ", the nearest strategy: gradients are sharded too, and parameters "
                     "between steps");
    } else if (source_.sharding.strategy == settings::Strategy::shard_grad_op) {
      about_strategy("becomes " + nearest("SHARD_GRAD_OP") +
                     ", which also shards parameters between steps and gathers them in "
                     "each step; ZeRO-2 keeps full parameters");
    } else if (source_.sharding.strategy == settings::Strategy::no_shard) {
      no_shard();
    }
  }

  [[nodiscard]] std::string nearest(const std::string& strategy) const {
    return form_ == ConfigForm::fsdp ? strategy : strategy_key(form_).text() + " false";
  }

  void no_shard() {
    if (form_ == ConfigForm::fsdp2) {
      about_strategy("becomes " + nearest("NO_SHARD") +
                     ", which shards gradients and optimizer state: FSDP 2 always shards; for full "
                     "copies choose distributed_type MULTI_GPU");
    }
  }

  void deepspeed_groups() {
    if (source_.shard_size == 0) {
      return;
    }
    const std::string groups = std::to_string(source_.shard_size);
    about("zero_hpz_partition_size"_key,
          "becomes HYBRID_SHARD: with hpZ a group of " + groups +
              " ranks keeps only a secondary copy of the weights; HYBRID_SHARD shards gradients "
              "and optimizer state within the group too, which needs more memory and sends less "
              "data between groups");
    group_sizes();
  }

  /// Warnings about groups of which the file does not give all sizes.
  void group_sizes() {
    const std::string groups = std::to_string(source_.shard_size);
    if (source_.shard_size == 0) {
      return;
    }
    if (form_ == ConfigForm::fsdp && source_.gpus_per_machine == 0) {
      add("FSDP 1 shards within a machine: " + groups +
          " is assumed to be its number of GPUs; give --gpus_per_machine if it is not");
    } else if (form_ == ConfigForm::fsdp && source_.gpus_per_machine != source_.shard_size) {
      add("parallelism_config_dp_shard_size " + groups + " makes groups of " + groups +
          " ranks although a machine has " + std::to_string(source_.gpus_per_machine) +
          " GPUs: acclaunch supports this with FSDP 1, Accelerate with FSDP 2 only (--to fsdp2)");
    } else if (form_ == ConfigForm::fsdp2 && source_.world_size == 0) {
      add("parallelism_config_dp_replicate_size is missing, because the number of processes is "
          "not given; Accelerate needs it");
    } else if (form_ == ConfigForm::fsdp2 && source_.world_size == source_.shard_size) {
      add("all " + groups +
          " processes are one group, so the result shards over all of them; with more machines "
          "add parallelism_config_dp_replicate_size");
    }
  }

  void deepspeed_offload() {
    const settings::ShardingSettings& sharding = source_.sharding;
    const bool param = sharding.offload_param != settings::OffloadDevice::none;
    const bool optimizer = sharding.offload_optimizer != settings::OffloadDevice::none;
    if (param != optimizer) {
      about(param ? "offload_param_device"_key : "offload_optimizer_device"_key,
            "becomes fsdp_offload_params: FSDP offloads parameters, gradients and the step "
            "together or not at all");
    }
    for (const auto& [key, device] :
         {std::pair{"offload_param_device"_key, sharding.offload_param},
          std::pair{"offload_optimizer_device"_key, sharding.offload_optimizer}}) {
      if (device == settings::OffloadDevice::nvme) {
        about(key, "becomes host memory, which must be large enough: FSDP cannot offload to NVMe");
      }
    }
  }

  void deepspeed_checkpoints() {
    if (source_.sharding.save_16bit_model) {
      about("zero3_save_16bit_model"_key,
            "becomes FULL_STATE_DICT: one file in the data type of the "
            "shards, fp32 with mixed precision, not in 16 bits");
    } else {
      add("DeepSpeed's own checkpoint (merged by zero_to_fp32.py) becomes SHARDED_STATE_DICT "
          "(merged by merge-weights); neither can read the other's checkpoints");
    }
  }

  void deepspeed_training() {
    for (const settings::SettingRow& row : settings::settings_table()) {
      if (row.section == settings::Section::training && has_effect_with_fsdp(settings_, row)) {
        about(row,
              "stays under deepspeed_config, where acclaunch reads it in every mode; "
              "Accelerate leaves it to the program with FSDP");
      }
    }
    clipping();
  }

  // From one version of FSDP to the other.
  void between_versions() {
    if (form_ == ConfigForm::fsdp2) {
      if (source_.sharding.strategy == settings::Strategy::no_shard) {
        no_shard();
      }
      if (source_.sharding.state_dict_type == settings::StateDictType::local) {
        about("fsdp_state_dict_type"_key,
              "becomes SHARDED_STATE_DICT: FSDP 2 has no other format with one file per rank");
      }
      add_losses(loss_between_versions(2));
    } else {
      if (source_.sharding.reshard_size > 0) {
        about_strategy("becomes true: FSDP 1 reshards to the whole group");
      }
      add_losses(loss_between_versions(1));
    }
    group_sizes();
  }

  const ConversionSource& source_;
  const settings::Settings& settings_;
  bool to_fsdp_;
  ConfigForm form_;
  std::vector<std::string> lines_;
};

}  // namespace

bool is_lost_in_fsdp(int version, const settings::SettingRow& row) {
  return !(row.*loss_between_versions(version)).reason.empty();
}

std::vector<std::string> conversion_remarks(const ConversionSource& source, ConfigForm form) {
  return Remarks(source, form).list();
}

}  // namespace acc::documents
