#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/fsdp_plugin.hpp"
#include "acc/plugins/strategy.hpp"
#include "faces/accelerate/resolver.hpp"

#include <algorithm>

namespace acc::launcher {

namespace fs = std::filesystem;
using plugins::Faults;
using plugins::SettingRow;
using plugins::Source;

void Resolver::read_sharding() {
  if (file_.has_parallelism_config && plan_.mode == Mode::fsdp && !settings_.boolean("use_fsdp")) {
    settings_.set("use_parallelism_config", "true",
                  {Source::Kind::derived, "parallelism_config in the file"});
  }
  inherit_variables();
  if (plan_.mode == Mode::fsdp) {
    read_fsdp();
  } else if (plan_.mode == Mode::deepspeed) {
    read_deepspeed();
  }
  plan_.sharding = plugins::sharding_settings(settings_, origin(), num_processes_,
                                              std::max(1, num_processes_ / num_machines_));
  explain_groups(plan_.sharding);
}

void Resolver::inherit_variables() {
  Faults faults;
  for (const SettingRow& row : plugins::settings_table()) {
    const std::string name(row.environment);
    const bool may_inherit = row.exported == plugins::Export::given && !name.empty() &&
                             plugins::applies(row.section, origin());
    const std::string value = may_inherit ? plugins::variable(environment_, name) : "";
    if (!value.empty() && !settings_.given(row.key)) {
      faults.collect([&] { settings_.set(row.key, value, {Source::Kind::environment, name}); });
    }
  }
  faults.raise();
}

void Resolver::read_fsdp() {
  const auto from_file = [&](std::string_view key) {
    return settings_.source(key).kind == Source::Kind::file;
  };
  if (from_file("fsdp_cpu_ram_efficient_loading") && from_file("fsdp_sync_module_states") &&
      settings_.boolean("fsdp_cpu_ram_efficient_loading") &&
      !settings_.boolean("fsdp_sync_module_states")) {
    throw Error(Errc::config,
                settings_.source("fsdp_cpu_ram_efficient_loading").where +
                    ": --fsdp_cpu_ram_efficient_loading true needs --fsdp_sync_module_states "
                    "true, but " +
                    settings_.source("fsdp_sync_module_states").where + " says false");
  }
  const bool version_1 = settings_.integer("fsdp_version") == 1;
  if (version_1 && settings_.given("fsdp_reshard_after_forward")) {
    const std::string settled = conduct_.reads_questionnaire_strategy
                                    ? plugins::settle_questionnaire_strategy(settings_)
                                    : "";
    if (!settled.empty()) {
      notice(settled);
    }
  } else if (!version_1 && settings_.given("fsdp_sharding_strategy")) {
    notice(settings_.source("fsdp_sharding_strategy").where +
           ": fsdp_sharding_strategy has no effect with FSDP 2, which reads "
           "fsdp_reshard_after_forward");
  }
}

void Resolver::read_deepspeed() {
  if (!settings_.has("deepspeed_config_file")) {
    return;
  }
  try {
    read_deepspeed_file();
  } catch (const Error& error) {
    if (conduct_.checks_deepspeed_file) {
      throw;
    }
    notice("the program will decide: " + std::string(error.what()));
  }
}

void Resolver::read_deepspeed_file() {
  const fs::path path = find_deepspeed_config();
  const auto file =
      plugins::apply_deepspeed_json(plugins::load_document(path), num_processes_, settings_);
  plan_.notices.insert(plan_.notices.end(), file.notices.begin(), file.notices.end());
  if (settings_.integer("zero_hpz_partition_size") > 1 && settings_.integer("zero_stage") != 3) {
    notice(settings_.source("zero_hpz_partition_size").where +
           ": zero_hpz_partition_size has no effect below stage 3");
  }
}

fs::path Resolver::find_deepspeed_config() {
  const fs::path named = settings_.text("deepspeed_config_file");
  std::error_code error;
  if (named.is_absolute() || fs::exists(facts_.working_directory / named, error)) {
    return named.is_absolute() ? named : shortest(facts_.working_directory / named, named);
  }
  if (config_) {
    const fs::path beside = config_->path.parent_path() / named;
    if (fs::exists(facts_.working_directory / beside, error)) {
      Source source = settings_.source("deepspeed_config_file");
      settings_.set("deepspeed_config_file", beside.string(), std::move(source));
      return shortest(facts_.working_directory / beside, beside);
    }
  }
  throw Error(Errc::not_found, settings_.source("deepspeed_config_file").where + ": cannot find " +
                                   named.string() + " in " + facts_.working_directory.string() +
                                   (config_ ? " or beside " + config_->path.string() : ""));
}

fs::path Resolver::shortest(const fs::path& full, const fs::path& named) {
  std::error_code error;
  return fs::equivalent(full, named, error) ? named : full;
}

void Resolver::explain_groups(const plugins::ShardingSettings& sharding) {
  if (!plugins::switches(sharding.strategy).replicate) {
    return;
  }
  const std::string name = plugins::upper(plugins::to_string(sharding.strategy));
  const bool by_size =
      settings_.choice("fsdp_sharding_strategy") != name || settings_.integer("fsdp_version") == 2;
  if (by_size) {
    notice("shard groups of " + std::to_string(sharding.shard_size) + " of " +
           std::to_string(plan_.num_processes) + " processes: the strategy is " + name);
  } else if (sharding.shard_size == 0 && plan_.num_machines == 1) {
    notice(name + " on one machine: all " + std::to_string(plan_.num_processes) +
           " processes are one shard group, with no replicas (--parallelism_config_dp_shard_size "
           "makes smaller groups)");
  }
}

}  // namespace acc::launcher
