// SPDX-License-Identifier: Apache-2.0
// Stage `read_values`: reads the configuration file, the flags, ACC_COMPAT and ACC_ENGINE into the
// settings, and selects the compatibility policy. Each value is checked by its row of the settings
// table; faults are collected in the draft.
#include "accelerate_cli/python_values.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Faults;
using settings::Section;
using settings::SettingRow;
using settings::Source;

/// Returns a number as Python prints it, since Accelerate converts such flags with float().
std::string float_text(const std::string& text) {
  const auto number = settings::parse_real(text);
  return number ? python::float_text(*number) : text;
}

/// True for flags whose words Accelerate compares exactly; in a file the letter case does not
/// matter.
bool has_exact_words(const SettingRow& row) {
  return row.type == settings::Type::choice &&
         (row.section == Section::launch || row.section == Section::dynamo);
}

/// True for settings of which Accelerate's launcher checks at most the type; it passes the value on
/// to the program.
bool is_left_to_program(const SettingRow& row) {
  switch (row.section) {
    case Section::launch: return row == "num_processes"_key;  // 0 is valid for one plain process
    case Section::zero:
    case Section::dynamo: return false;
    case Section::training: return !row.environment.empty();
    case Section::fsdp:
    case Section::deepspeed:
    case Section::parallelism:
    case Section::fp8: return true;
  }
  return false;
}

/// Sets one flag's value. In compatibility mode argparse's rules decide what is rejected, and
/// faults that only the program would find are dropped.
void read_flag(AccelerateDraft& draft, const Flags::Value& value) {
  const SettingRow& row = *settings::find_setting(value.key, draft.settings.table());
  const Source source{Source::Kind::flag, value.written};
  if (!draft.policy.checks_values) {
    if (const auto expected = argparse_expectation(row, value.text)) {
      throw Error(Errc::config,
                  value.written + " must be " + *expected + ", got \"" + value.text + "\"");
    }
    if (is_left_to_program(row)) {
      Faults of_program;
      of_program.collect([&] { draft.settings.set(row, value.text, source); });
      return;
    }
  }
  draft.settings.set(row, row.type == settings::Type::real ? float_text(value.text) : value.text,
                     source);
  if (has_exact_words(row) && draft.settings.choice(row) != value.text) {
    throw Error(Errc::config, value.written + " must be " + settings::expected_value(row) +
                                  ", got \"" + value.text + "\"; did you mean \"" +
                                  draft.settings.choice(row) + "\"?");
  }
}

}  // namespace

const CompatPolicy& compat_policy_of(const Flags& flags, const settings::Environment& environment) {
  const Flags::Value* flag = flags.find("compat"_key);
  const std::string word =
      flag != nullptr ? flag->text : host::value_of(environment, host::variables.compat);
  return word == "accelerate" ? kAcceleratePolicy : kAcclaunchPolicy;
}

void read_values(AccelerateDraft& draft) {
  if (draft.config) {
    draft.file =
        documents::read_accelerate_config(*draft.config, draft.settings,
                                          {.checks_inner_keys = draft.policy.checks_inner_keys,
                                           .reads_hidden_keys = draft.policy.reads_hidden_keys,
                                           .checks_values = draft.policy.checks_values},
                                          draft.faults);
    draft.notice_all(draft.file.notices);
  }
  draft.faults.collect(
      [&] { plan::read_variable(draft, "compat"_key, std::string(host::variables.compat.name)); });
  for (const Flags::Value& value : draft.flags.values) {
    if (!draft.faults.collect([&] { read_flag(draft, value); })) {
      draft.file.faulty_keys.insert(value.key);
    }
  }
  plan::read_engine(draft);
  if (!draft.policy.checks_values) {
    draft.arguments = merged_arguments(draft.flags, draft.config,
                                       static_cast<int>(draft.facts.visible_gpus.size()));
  }
}

}  // namespace acc::launcher::accelerate_cli
