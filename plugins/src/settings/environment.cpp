// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/environment.hpp"

#include "acc/base/text.hpp"
#include "acc/settings/setting_rows.hpp"
#include "settings/variables.hpp"

#include <unistd.h>

namespace acc::settings {
namespace {

// Encoding of settings into a worker's environment. A worker may be a Python program, which must
// find exactly the variables that `accelerate launch` would set, or a program with libacc_runtime,
// which also reads ACC_<KEY>. ACC_<KEY> carries a value that Accelerate's variables cannot:
// settings that Accelerate does not have, and values of a DeepSpeed file, which Accelerate's
// launcher does not read.

std::string formatted(TextFormat format, const std::string& text) {
  switch (format) {
    case TextFormat::as_given: return text;
    case TextFormat::lower: return lower(text);
    case TextFormat::upper: return upper(text);
    case TextFormat::python_bool: return parse_boolean(text).value_or(false) ? "True" : "False";
    case TextFormat::digit: return parse_boolean(text).value_or(false) ? "1" : "0";
  }
  return text;
}

/// True if Accelerate exports the setting. False if it depends on another setting that is off, as
/// the fp8_* settings depend on mixed_precision fp8.
bool has_meaning(const SettingRow& row, const Settings& settings) {
  if (row.section == Section::fp8) {
    return settings.choice("mixed_precision"_key) == "fp8";
  }
  if (row.section == Section::parallelism && !settings.boolean("use_parallelism_config"_key)) {
    return false;
  }
  return row.of_several.empty() || settings.integer(*find_setting(row.of_several)) > 1;
}

/// Returns the value of Accelerate's own variable, or nullopt if Accelerate would not set it.
std::optional<std::string> accelerate_text(const SettingRow& row, const Settings& settings,
                                           bool passes_parallelism) {
  // Accelerate's launcher does not read the DeepSpeed file, so its variable keeps the default.
  const bool own_value = settings.source(row).kind == Source::Kind::deepspeed_file;
  const std::string text = own_value ? std::string(row.fallback) : settings.text(row);
  const bool always =
      row.exported == Export::always || (row.section == Section::parallelism && passes_parallelism);
  if (row.environment.empty() || text.empty() || !has_meaning(row, settings)) {
    return std::nullopt;
  }
  if (row.exported == Export::when_true && !settings.boolean(row)) {
    return std::nullopt;
  }
  if (row.exported == Export::given && !always && (own_value || !settings.given(row))) {
    return std::nullopt;
  }
  return text;
}

/// Sets the variable of a row. A list with several variables sets one per item.
void export_text(const SettingRow& row, const std::string& text, Environment& environment) {
  const auto names = split(row.environment, '|');
  const auto parts = split(text, ',');
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string part =
        names.size() == 1 ? text : std::string(i < parts.size() ? parts[i] : "");
    environment.emplace(names[i], formatted(row.format, part));
  }
}

/// True if the setting needs acclaunch's own variable, in addition to Accelerate's or instead of
/// it.
bool needs_own_variable(const SettingRow& row, const Settings& settings, std::string_view origin) {
  if (!reaches_workers(row)) {
    return false;
  }
  const Source::Kind kind = settings.source(row).kind;
  if (kind == Source::Kind::default_value) {
    return false;
  }
  return kind == Source::Kind::deepspeed_file || row.environment.empty() ||
         (row.section == Section::parallelism && !settings.boolean("use_parallelism_config"_key)) ||
         (row.section == Section::training && origin != "deepspeed");
}

/// Returns the value of kSourcesVariable: the place of each setting that a file or a flag gave.
std::string sources_text(const Settings& settings, std::string_view origin) {
  std::string text;
  for (const SettingRow& row : settings_table()) {
    const Source& source = settings.source(row);
    const bool has_place = source.kind == Source::Kind::file ||
                           source.kind == Source::Kind::deepspeed_file ||
                           source.kind == Source::Kind::flag;
    if (has_place && reaches_workers(row) && applies(row.section, origin)) {
      text += (text.empty() ? "" : ";") + std::string(row.key) + "=" + source.where;
    }
  }
  return text;
}

}  // namespace

std::string variable(const Environment& environment, const std::string& name,
                     const std::string& fallback) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? fallback : found->second;
}

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) {
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return result;
}

bool applies(Section section, std::string_view origin) noexcept {
  switch (section) {
    case Section::launch:
    case Section::training:
    case Section::fp8: return true;
    case Section::fsdp: return origin == "fsdp";
    case Section::deepspeed:
    case Section::zero: return origin == "deepspeed";
    case Section::parallelism:
    case Section::dynamo: return origin != "deepspeed";
  }
  return false;
}

const std::string* value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? nullptr : &found->second;
}

Error bad_variable(std::string_view name, const std::string& value, const std::string& expected) {
  return Error(Errc::config,
               std::string(name) + " must be " + expected + ", got \"" + printable(value) + "\"");
}

Environment settings_to_environment(const Settings& settings, std::string_view origin,
                                    Device device) {
  Environment result;
  result.emplace(kModeVariable, origin);
  result.emplace(kDeviceVariable, to_string(device));
  result.emplace(kSourcesVariable, sources_text(settings, origin));
  if (origin == "fsdp") {
    result.emplace(kUseFsdpVariable, "true");
  } else if (origin == "deepspeed") {
    result.emplace(kUseDeepSpeedVariable, "true");
  }
  const bool passes_parallelism = settings.boolean("use_parallelism_config"_key);
  for (const SettingRow& row : settings_table()) {
    if (!applies(row.section, origin)) {
      continue;
    }
    if (needs_own_variable(row, settings, origin)) {
      result.emplace(own_variable(row), settings.text(row));
    }
    if (row.section == Section::training && origin != "deepspeed") {
      continue;  // Accelerate exports these in DeepSpeed mode only
    }
    if (auto text = accelerate_text(row, settings, passes_parallelism)) {
      export_text(row, *text, result);
    }
  }
  return result;
}

}  // namespace acc::settings
