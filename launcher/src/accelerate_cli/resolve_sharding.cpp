// SPDX-License-Identifier: Apache-2.0
// Stage `read_sharding`: FSDP and DeepSpeed settings, the DeepSpeed JSON file, and the sharding
// that follows from them.
#include "acc/documents/deepspeed_json.hpp"
#include "acc/settings/deepspeed_plugin.hpp"
#include "acc/settings/fsdp_plugin.hpp"
#include "acc/settings/strategy.hpp"
#include "accelerate_cli/stages.hpp"

#include <algorithm>

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Faults;
using settings::SettingRow;
using settings::Source;

namespace fs = std::filesystem;

/// Reads settings from variables of the parent that reach the program because Accelerate does not
/// set them, and from ACC_* for settings that Accelerate does not have.
void inherit_variables(AccelerateDraft& draft, std::string_view origin) {
  Faults faults;
  for (const SettingRow& row : settings::settings_table()) {
    const bool is_ours = row.section == settings::Section::training && row.environment.empty();
    const std::string name = is_ours ? settings::own_variable(row) : std::string(row.environment);
    if ((is_ours || row.exported == settings::Export::given) && !name.empty() &&
        settings::applies(row.section, origin)) {
      faults.collect([&] { plan::read_variable(draft, row, name); });
    }
  }
  faults.raise();
}

/// Compatibility mode: turns a fault that Accelerate's launcher does not check into a notice.
void leave_to_program(AccelerateDraft& draft, const Error& error) {
  draft.notice("the program will decide: " + std::string(error.what()));
}

/// Throws Error(config) if the file has a setting that is true and another one that must be too.
void check_needs(const AccelerateDraft& draft) {
  const auto file_says = [&](const settings::SettingRow& row, bool value) {
    return draft.settings.source(row).kind == Source::Kind::file &&
           draft.settings.boolean(row) == value;
  };
  for (const settings::SettingRow& row : settings::settings_table()) {
    const settings::SettingRow* other = settings::find_setting(row.needs);
    if (other != nullptr && file_says(row, true) && file_says(*other, false)) {
      throw Error(Errc::config, draft.settings.source(row).where + ": --" + std::string(row.key) +
                                    " true needs --" + std::string(other->key) + " true, but " +
                                    draft.settings.source(*other).where + " says false");
    }
  }
}

void read_fsdp(AccelerateDraft& draft) {
  if (draft.policy.checks_values) {
    check_needs(draft);
  }
  if (draft.policy.reads_questionnaire_strategy) {
    draft.notice(settings::settle_questionnaire_strategy(draft.settings));
  }
  if (settings::is_fsdp1(draft.settings)) {
    return;
  }
  if (const settings::SettingKey old = settings::fsdp_strategy_key(1); draft.settings.given(old)) {
    draft.notice(draft.settings.source(old).where + ": " + old.text() +
                 " has no effect with FSDP 2, which reads " +
                 settings::fsdp_strategy_key(2).text());
  }
}

/// Returns the path as the user wrote it if it leads to the same file from here; else the full
/// path.
fs::path shortest(const fs::path& full, const fs::path& named) {
  std::error_code error;
  return fs::equivalent(full, named, error) ? named : full;
}

/// Finds the JSON file relative to the working directory, else in the folder of the YAML file. In
/// the second case the setting is replaced by a path that the program can open.
fs::path find_deepspeed_config(AccelerateDraft& draft) {
  const fs::path named = draft.settings.text("deepspeed_config_file"_key);
  std::error_code error;
  if (named.is_absolute() || fs::exists(draft.facts.working_directory / named, error)) {
    return named.is_absolute() ? named : shortest(draft.facts.working_directory / named, named);
  }
  if (draft.config) {
    const fs::path beside = draft.config->path.parent_path() / named;
    if (fs::exists(draft.facts.working_directory / beside, error)) {
      Source source = draft.settings.source("deepspeed_config_file"_key);
      draft.settings.set("deepspeed_config_file"_key, beside.string(), std::move(source));
      return shortest(draft.facts.working_directory / beside, beside);
    }
  }
  throw Error(Errc::not_found,
              draft.settings.source("deepspeed_config_file"_key).where + ": cannot find " +
                  named.string() + " in " + draft.facts.working_directory.string() +
                  (draft.config ? " or next to " + draft.config->path.string() : ""));
}

void read_deepspeed_file(AccelerateDraft& draft, int num_processes) {
  const fs::path path = find_deepspeed_config(draft);
  const auto file = documents::apply_deepspeed_json(documents::load_document(path), num_processes,
                                                    draft.settings);
  draft.notice_all(file.notices);
  draft.notice(settings::notice_of_unused_hpz(draft.settings));
}

void read_deepspeed(AccelerateDraft& draft, int num_processes) {
  if (!draft.settings.has("deepspeed_config_file"_key)) {
    return;
  }
  try {
    read_deepspeed_file(draft, num_processes);
  } catch (const Error& error) {
    if (draft.policy.checks_deepspeed_file) {
      throw;
    }
    leave_to_program(draft, error);
  }
}

/// Adds a notice about the shard groups of a hybrid strategy that the user did not name or may not
/// expect.
void explain_groups(AccelerateDraft& draft, const settings::ShardingSettings& sharding,
                    const RankLayout& layout) {
  if (!settings::switches(sharding.strategy).replicate) {
    return;
  }
  const std::string name = upper(settings::to_string(sharding.strategy));
  const bool by_size = draft.settings.choice(settings::fsdp_strategy_key(1)) != name ||
                       !settings::is_fsdp1(draft.settings);
  const std::string total =
      layout.num_processes ? std::to_string(*layout.num_processes) + " " : std::string();
  if (by_size) {
    draft.notice("shard groups of " + std::to_string(sharding.shard_size) +
                 (total.empty() ? " " : " of ") + total + "processes: the strategy is " + name);
  } else if (sharding.shard_size == 0 && layout.num_machines == 1) {
    draft.notice(
        name + " on one machine: all " + total +
        "processes are one shard group, with no replicas (--parallelism_config_dp_shard_size "
        "makes smaller groups)");
  }
}

settings::ShardingSettings resolve_sharding(AccelerateDraft& draft, const Workers& workers,
                                            const RankLayout& layout) {
  const std::string_view origin = origin_of(workers.mode);
  inherit_variables(draft, origin);
  if (workers.mode == Mode::fsdp) {
    read_fsdp(draft);
  } else if (workers.mode == Mode::deepspeed) {
    read_deepspeed(draft, workers.num_processes);
  }
  auto sharding = settings::sharding_settings(draft.settings, origin, workers.num_processes);
  explain_groups(draft, sharding, layout);
  return sharding;
}

}  // namespace

settings::ShardingSettings read_sharding(AccelerateDraft& draft, const Workers& workers,
                                         const RankLayout& layout) {
  if (draft.file.has_parallelism_config && workers.mode == Mode::fsdp &&
      !draft.mode_flag(Mode::fsdp)) {
    draft.settings.set("use_parallelism_config"_key, "true",
                       {Source::Kind::derived, "parallelism_config in the file"});
  }
  try {
    return resolve_sharding(draft, workers, layout);
  } catch (const Error& error) {
    if (draft.policy.checks_values) {
      throw;
    }
    leave_to_program(draft, error);
    return {};
  }
}

}  // namespace acc::launcher::accelerate_cli
