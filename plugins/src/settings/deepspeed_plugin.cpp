// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/deepspeed_plugin.hpp"

#include "acc/base/error.hpp"
#include "settings/fields.hpp"

namespace acc::settings {
namespace {

// Translation of DeepSpeed's settings to ShardingSettings. The ZeRO stage gives the strategy; the
// other settings bound by numbers of elements what FSDP bounds by units.

constexpr std::string_view kDeepSpeed = "deepspeed";
constexpr std::string_view kDeepSpeedName = "DeepSpeedPlugin";
constexpr SettingKey kStage = "zero_stage"_key;
constexpr SettingKey kHpz = "zero_hpz_partition_size"_key;

Strategy strategy_of_stage(int stage) {
  switch (stage) {
    case 0: return Strategy::no_shard;
    case 1: return Strategy::shard_optimizer;
    case 2: return Strategy::shard_grad_op;
    default: return Strategy::full_shard;
  }
}

/// Refuses offload to NVMe without a folder.
void check_nvme(const Settings& settings) {
  for (const SettingRow& row : settings_table()) {
    if (row.folder_of.empty() || (settings.has(row) && settings.text(row) != "none")) {
      continue;
    }
    const SettingRow& device = *find_setting(row.folder_of);
    if (settings.choice(device) == "nvme") {
      throw Error(Errc::config, named_value(settings, device) + " needs " + std::string(row.key) +
                                    ", the folder to store it in");
    }
  }
}

/// True if a setting asks for something that the stage does not have.
bool is_unused(const Settings& settings, const SettingRow& row) {
  return row.needs_stage_3 && settings.canonical(row) != row.fallback && !is_zero3(settings);
}

/// Returns the betas of the DeepSpeed file's optimizer.
std::vector<double> betas_of(const Settings& settings) {
  std::vector<double> betas;
  for (const std::string& beta : settings.list("optimizer_betas"_key)) {
    betas.push_back(parse_real(beta).value_or(-1.0));
  }
  for (const double beta : betas) {
    if (betas.size() != 2 || beta < 0.0 || beta >= 1.0) {
      throw Error(Errc::config, place_of(settings, "optimizer_betas"_key) +
                                    " must be two numbers of at least 0 and below 1, got \"" +
                                    settings.text("optimizer_betas"_key) + "\"");
    }
  }
  return betas;
}

}  // namespace

void DeepSpeedPlugin::set(std::string_view field, std::string_view value) {
  set_field(*this, kDeepSpeed, kDeepSpeedName, field, value);
}

ProgramSettings DeepSpeedPlugin::program_settings() const {
  return {std::string(kDeepSpeedName), std::string(kDeepSpeed), set_fields(*this, kDeepSpeed)};
}

DeepSpeedPlugin DeepSpeedPlugin::from_settings(const Settings& settings) {
  DeepSpeedPlugin plugin;
  read_fields(settings, kDeepSpeed, plugin);
  check_nvme(settings);
  return plugin;
}

bool is_zero3(const Settings& settings) {
  return settings.integer(kStage) == 3;
}

std::string notice_of_unused_hpz(const Settings& settings) {
  return is_unused(settings, *find_setting(kHpz.name()))
             ? settings.source(kHpz).where + ": " + kHpz.text() +
                   " has no effect below stage 3; libacc_runtime rejects it there"
             : "";
}

void check_deepspeed(const Settings& settings) {
  for (const SettingRow& row : settings_table()) {
    if (is_unused(settings, row)) {
      refuse(settings, row, "needs " + kStage.text() + " 3", kStage);
    }
  }
}

void add_deepspeed(const Settings& settings, int world_size, ShardingSettings& result) {
  const DeepSpeedPlugin plugin = DeepSpeedPlugin::from_settings(settings);
  result.strategy = strategy_of_stage(plugin.zero_stage.value());
  if (plugin.zero_stage != 3 || world_size == 1) {  // other stages keep the weights complete
    result.hpz_partition_size = 1;
  }
  if (world_size % result.hpz_partition_size != 0) {
    throw Error(Errc::config, named_value(settings, kHpz) + " does not divide the " +
                                  std::to_string(world_size) + " processes");
  }
  // DeepSpeed's stage 3 records the order in which parameters are used and prefetches and frees
  // along it by numbers of elements; FSDP's bound by units is off.
  result.limit_all_gathers = false;
  if (result.prefetch_bucket_size > 0) {
    result.backward_prefetch = BackwardPrefetch::backward_pre;
    result.forward_prefetch = true;
  }
  // Only FSDP has this way of loading. Without it each rank reads its own shard.
  result.cpu_ram_efficient_loading = false;
  result.loss_scaling.rule = LossScaleRule::deepspeed;
  result.round_initial_weights = result.is_mixed();
  result.optimizer.betas = betas_of(settings);
}

}  // namespace acc::settings
