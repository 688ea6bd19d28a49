// SPDX-License-Identifier: Apache-2.0
// Merging of a program's plugin with the launcher's settings: the program's values replace the
// launcher's. Each replaced value is reported in a text that is the same on all ranks, so that
// ranks can compare their settings at start.
#include "acc/settings/program_settings.hpp"

#include "settings/fields.hpp"
#include "settings/variables.hpp"

namespace acc::settings {

std::string place_of(const Settings& settings, SettingKey key) {
  const Source& source = settings.source(key);
  const bool names_it = source.kind == Source::Kind::flag ||
                        source.kind == Source::Kind::environment ||
                        source.kind == Source::Kind::program;
  return names_it ? source.where : source.where + ": " + key.text();
}

std::string named_value(const Settings& settings, SettingKey key) {
  return key.text() + " " + settings.text(key) + " (" + describe(settings.source(key)) + ")";
}

void refuse(const Settings& settings, SettingKey first, std::string_view why, SettingKey second) {
  throw Error(Errc::config, named_value(settings, first) + " " + std::string(why) +
                                ", but there is " + named_value(settings, second));
}

std::vector<std::string> apply_program_settings(const ProgramSettings& program, Settings& settings,
                                                Faults& faults) {
  std::vector<std::string> lines;
  for (const ProgramValue& value : program.values) {
    const SettingRow& row = *find_setting(value.key);
    const Source before = settings.source(row);
    const std::string other = settings.text(row);
    const std::string other_word = settings.canonical(row);
    std::string line = value.field + " " + value.text;
    const bool is_set = faults.collect([&] {
      settings.set(row, value.text, {Source::Kind::program, program.plugin + "." + value.field});
    });
    if (is_set && before.kind != Source::Kind::default_value &&
        other_word != settings.canonical(row)) {
      // No place such as config.yaml:12: it may differ between machines.
      line += " instead of the launcher's " + other;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace acc::settings
