// SPDX-License-Identifier: Apache-2.0
// Stage `choose_mode`: plain, multi-GPU, FSDP or DeepSpeed. A mode flag overrides distributed_type
// of the configuration file. Flags and blocks of the other modes become notices or faults.
#include "accelerate_cli/stages.hpp"

#include <algorithm>
#include <array>

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Faults;
using settings::Section;
using settings::SettingRow;
using settings::Source;

/// Throws Error(config) if two mode flags are given. --cpu counts as a mode in Accelerate; here it
/// only excludes --multi_gpu.
void check_mode_flags(const AccelerateDraft& draft) {
  Faults faults;
  std::string chosen;
  const auto choose = [&](const std::string& flag) {
    if (!chosen.empty()) {
      faults.add("--" + chosen + " and --" + flag + " exclude each other; choose one");
    }
    chosen = flag;
  };
  if (draft.cpu_flag() && (draft.mode_flag(Mode::multi_gpu) || !draft.policy.cpu_is_a_device)) {
    choose("cpu");
  }
  for (const ModeFlag& flag : kModeFlags) {
    if (draft.settings.boolean(flag.key)) {
      choose(flag.key.text());
    }
  }
  faults.raise();
}

/// Returns the mode flag, or nullptr if none is given.
const ModeFlag* given_mode_flag(const AccelerateDraft& draft) {
  const auto is_given = [&](const ModeFlag& flag) { return draft.settings.boolean(flag.key); };
  const auto* found = std::ranges::find_if(kModeFlags, is_given);
  return found == kModeFlags.end() ? nullptr : found;
}

Mode mode_of_file(const std::string& distributed_type) {
  const auto* found = std::ranges::find(kModeFlags, distributed_type, &ModeFlag::distributed_type);
  return found == kModeFlags.end() ? Mode::plain : found->mode;
}

/// Adds a notice for each flag that has no effect in this mode.
void notice_flags_of_other_modes(AccelerateDraft& draft, Mode mode) {
  for (const Flags::Value& value : draft.flags.values) {
    const Section section = settings::find_setting(value.key, draft.settings.table())->section;
    const auto has_no_effect_without = [&](Mode other) {
      return value.written + " has no effect without --" + mode_key(other).text();
    };
    if (section == Section::fsdp && mode != Mode::fsdp) {
      draft.notice(has_no_effect_without(Mode::fsdp));
    } else if (section == Section::deepspeed && mode != Mode::deepspeed) {
      draft.notice(has_no_effect_without(Mode::deepspeed));
    } else if (section == Section::parallelism && mode != Mode::fsdp) {
      draft.notice(has_no_effect_without(Mode::fsdp) +
                   (mode == Mode::deepspeed
                        ? "; for hpZ set zero_hpz_partition_size in the DeepSpeed JSON file"
                        : ""));
    } else if (section == Section::fp8 && draft.settings.choice("mixed_precision"_key) != "fp8") {
      draft.notice(value.written + " has no effect without --mixed_precision fp8");
    }
  }
  const bool fits = draft.policy.checks_values ? mode == Mode::fsdp : draft.mode_flag(Mode::fsdp);
  if (draft.settings.boolean("use_parallelism_config"_key) && !fits) {
    throw Error(Errc::config, "--use_parallelism_config needs --" + mode_key(Mode::fsdp).text() +
                                  " and --fsdp_version 2");
  }
}

/// Reports settings of the other mode's block in the file. A file with FSDP and DeepSpeed settings
/// contradicts itself, which is a fault. If a flag overrides the file's mode, the block merely has
/// no effect, which is a notice.
void check_blocks_of_other_modes(AccelerateDraft& draft, Mode mode) {
  const ModeFlag* flag = given_mode_flag(draft);
  for (const SettingRow& row : settings::settings_table()) {
    const bool other = (row.section == Section::fsdp && mode == Mode::deepspeed) ||
                       (row.section == Section::deepspeed && mode == Mode::fsdp);
    if (!other || draft.settings.source(row).kind != Source::Kind::file) {
      continue;
    }
    if (flag != nullptr) {
      draft.notice(draft.place(row) + " has no effect with --" + flag->key.text());
    } else if (draft.policy.checks_contradictions) {
      draft.faults.add(draft.place(row) + " applies in " +
                       (row.section == Section::fsdp ? "FSDP" : "DeepSpeed") +
                       " mode only, but distributed_type is " + draft.file.distributed_type + " (" +
                       draft.file.distributed_type_where + "); remove one of them");
    }
  }
}

}  // namespace

Mode choose_mode(AccelerateDraft& draft) {
  check_mode_flags(draft);
  const ModeFlag* flag = given_mode_flag(draft);
  const Mode mode = flag != nullptr ? flag->mode : mode_of_file(draft.file.distributed_type);
  if (!draft.cpu_flag()) {
    return mode;
  }
  if (draft.policy.cpu_is_a_device) {
    if (mode != Mode::multi_gpu) {
      return mode;
    }
    draft.notice(draft.file.distributed_type_where +
                 ": distributed_type MULTI_GPU is not used with --cpu");
  }
  return Mode::plain;
}

void check_mode(AccelerateDraft& draft, Mode mode) {
  notice_flags_of_other_modes(draft, mode);
  check_blocks_of_other_modes(draft, mode);
}

}  // namespace acc::launcher::accelerate_cli
