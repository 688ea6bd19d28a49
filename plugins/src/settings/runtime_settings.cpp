// SPDX-License-Identifier: Apache-2.0
#include "acc/base/flight_record.hpp"
#include "acc/settings/fp8_settings.hpp"
#include "settings/fields.hpp"
#include "settings/variables.hpp"

#include <limits>

namespace acc::settings {
namespace {

// Decoding of a worker's environment (settings_from_environment): the opposite of environment.cpp,
// plus torchrun's identity variables and the variables below. All faults are collected and reported
// together.

// Variables that only the runtime reads. The launcher passes them on unchanged.
constexpr std::string_view kTimeoutVariable = "ACC_COLLECTIVE_TIMEOUT";
constexpr std::string_view kShmGatherVariable = "ACC_SHM_GATHER";
constexpr std::string_view kCollectivesVariable = "ACC_COLLECTIVES";
constexpr std::string_view kZeroSmVariable = "ACC_NCCL_ZERO_SM";
constexpr std::string_view kSplitShareVariable = "ACC_NCCL_SPLIT_SHARE";
constexpr std::string_view kCheckVariable = "ACC_CHECK";

bool is_on(const Environment& environment, std::string_view name) {
  const std::string* value = value_of(environment, name);
  return value != nullptr && parse_boolean(*value).value_or(false);
}

/// The mode (none, fsdp or deepspeed) and the variable that it comes from.
struct Origin {
  std::string mode = "none";
  std::string where;
};

/// Reads the mode from ACC_MODE. Without it another launcher started the worker, such as
/// `accelerate launch`, and Accelerate's variables give the mode.
Origin read_origin(const Environment& environment) {
  if (const std::string* origin = value_of(environment, kModeVariable)) {
    if (*origin != "none" && *origin != "fsdp" && *origin != "deepspeed") {
      throw bad_variable(kModeVariable, *origin, "none, fsdp or deepspeed");
    }
    return {*origin, std::string(kModeVariable)};
  }
  const bool fsdp = is_on(environment, kUseFsdpVariable);
  const bool deepspeed = is_on(environment, kUseDeepSpeedVariable);
  if (fsdp && deepspeed) {
    throw Error(Errc::config,
                "ACCELERATE_USE_FSDP and ACCELERATE_USE_DEEPSPEED are both set; unset one");
  }
  return fsdp        ? Origin{"fsdp", kUseFsdpVariable}
         : deepspeed ? Origin{"deepspeed", kUseDeepSpeedVariable}
                     : Origin{};
}

/// Returns the mode that environment and program agree on. A plugin of the program implies a mode,
/// which applies if the environment has none. Throws Error(config) if the two differ.
std::string agreed_mode(const Origin& origin, const ProgramSettings& program) {
  if (program.plugin.empty() || origin.mode == program.origin) {
    return origin.mode;
  }
  if (origin.mode != "none") {
    throw Error(Errc::config, "the program's " + program.plugin + " contradicts " + origin.where +
                                  ", by which the launcher chose mode " + origin.mode +
                                  "; launch it with --use_" + program.origin +
                                  ", or remove the plugin from the program");
  }
  return program.origin;
}

/// Returns the value of an enumeration that a variable names.
template <typename Enum>
Enum read_word(const Environment& environment, std::string_view name, Enum fallback) {
  const std::string* text = value_of(environment, name);
  if (text == nullptr) {
    return fallback;
  }
  if (const auto value = value_named<Enum>(*text)) {
    return *value;
  }
  throw bad_variable(name, *text,
                     expected_value({.type = Type::choice, .allowed = kChoices<Enum>}));
}

std::chrono::seconds read_collective_timeout(const Environment& environment) {
  const std::string* text = value_of(environment, kTimeoutVariable);
  if (text == nullptr) {
    return RuntimeSettings{}.collective_timeout;
  }
  const auto seconds = parse_integer(*text);
  if (!seconds || *seconds < 1) {
    throw bad_variable(kTimeoutVariable, *text, "a whole number of seconds, at least 1");
  }
  return std::chrono::seconds(*seconds);
}

/// Number of the job's round, which only an acclaunch that records data sets.
int read_data_round(const Environment& environment) {
  const std::string text = variable(environment, kDataRoundVariable, "0");
  const std::optional<int> round = read_number(text);
  if (!round) {
    throw bad_variable(kDataRoundVariable, text, "a number");
  }
  return *round;
}

int read_record_steps(const Environment& environment) {
  const std::string text = variable(environment, kRecordStepsVariable, "");
  if (text.empty()) {
    return 0;
  }
  const auto steps = parse_integer(text);
  if (!steps || *steps < 1 || *steps > std::numeric_limits<int>::max()) {
    throw bad_variable(kRecordStepsVariable, text, "a number of steps, at least 1");
  }
  return static_cast<int>(*steps);
}

bool read_copy_gathers(const Environment& environment) {
  const std::string* how = value_of(environment, kShmGatherVariable);
  if (how == nullptr || *how == "share") {
    return false;
  }
  if (*how != "copy") {
    throw bad_variable(kShmGatherVariable, *how, "share or copy");
  }
  return true;
}

bool read_boolean(const Environment& environment, std::string_view name, bool fallback) {
  const std::string* text = value_of(environment, name);
  const auto value = text == nullptr ? std::optional(fallback) : parse_boolean(*text);
  if (!value) {
    throw bad_variable(name, *text, "true or false");
  }
  return *value;
}

/// Returns the place of each setting by its key, as the launcher recorded it in kSourcesVariable.
std::map<std::string, Source, std::less<>> read_sources(const Environment& environment) {
  std::map<std::string, Source, std::less<>> sources;
  const std::string text = variable(environment, std::string(kSourcesVariable));
  for (const std::string_view entry : split(text, ';')) {
    const auto equals = entry.find('=');
    if (equals != std::string_view::npos) {
      const std::string where(entry.substr(equals + 1));
      const auto kind = where.starts_with("--") ? Source::Kind::flag : Source::Kind::file;
      sources.emplace(entry.substr(0, equals), Source{kind, where});
    }
  }
  return sources;
}

/// Returns the value of a variable, or the values of several (`A|B|C`) joined by commas, if all are
/// set; else "".
std::string joined_values(const Environment& environment, std::string_view variables) {
  std::string joined;
  for (const std::string_view variable : split(variables, '|')) {
    const std::string* value = value_of(environment, variable);
    if (value == nullptr || value->empty()) {
      return "";
    }
    joined += (joined.empty() ? "" : ",") + *value;
  }
  return joined;
}

/// Reads each setting for which `wanted` is true: from ACC_<KEY> if it is set, else from
/// Accelerate's variable. Adds wrong values to `faults` and continues.
template <class Wanted>
Settings read_settings(const Environment& environment, Faults& faults, Wanted&& wanted) {
  Settings settings;
  const auto sources = read_sources(environment);
  const auto read = [&](const SettingRow& row, const std::string& variable) {
    const std::string value = joined_values(environment, variable);
    if (value.empty()) {
      return false;
    }
    const auto found = sources.find(row.key);
    faults.collect([&] {
      settings.set(
          row, value,
          found != sources.end() ? found->second : Source{Source::Kind::environment, variable});
    });
    return true;
  };
  for (const SettingRow& row : settings_table()) {
    if (!reaches_workers(row) || !wanted(row)) {
      continue;
    }
    if (!read(row, own_variable(row)) && !row.environment.empty()) {
      read(row, std::string(row.environment));
    }
  }
  return settings;
}

/// Refuses tensor, context and sequence parallelism: the launcher passes them on to Python
/// programs, but this runtime has data parallelism only.
void check_parallelism(const Settings& settings) {
  for (const SettingKey key : {"parallelism_config_tp_size"_key, "parallelism_config_cp_size"_key,
                               "parallelism_config_sp_size"_key}) {
    if (settings.integer(key) > 1) {
      throw Error(Errc::not_supported,
                  key.text() + " must be 1, got " + settings.text(key) +
                      ": the acclaunch runtime splits data and parameters only");
    }
  }
}

/// Returns the MixedPrecision of a dtype; `no` stands for fp32.
MixedPrecision precision_of(ReduceDtype dtype) {
  return dtype == ReduceDtype::fp16   ? MixedPrecision::fp16
         : dtype == ReduceDtype::bf16 ? MixedPrecision::bf16
                                      : MixedPrecision::no;
}

}  // namespace

ShardingSettings sharding_settings(const Settings& settings, std::string_view origin,
                                   int world_size) {
  ShardingSettings result;
  read_members(settings, origin, result);
  if (const auto dtype = value_named<ReduceDtype>(settings.choice("reduce_dtype"_key))) {
    result.reduce_precision = precision_of(*dtype);
  }
  if (origin == "fsdp") {
    add_fsdp(settings, world_size, result);
  } else if (origin == "deepspeed") {
    add_deepspeed(settings, world_size, result);
  }
  return result;
}

RuntimeSettings settings_from_environment(const Environment& environment,
                                          const ProgramSettings& program) {
  // Each reader adds its faults and leaves a default, so that the user sees all faults at once. The
  // translation at the end runs only if there were none.
  Faults faults;
  RuntimeSettings result;
  faults.collect([&] { result.origin = agreed_mode(read_origin(environment), program); });
  faults.collect([&] { result.device = read_word(environment, kDeviceVariable, result.device); });
  faults.collect([&] { result.collective_timeout = read_collective_timeout(environment); });
  faults.collect([&] { result.copy_gathers = read_copy_gathers(environment); });
  faults.collect([&] {
    result.device_collectives =
        read_word(environment, kCollectivesVariable, result.device_collectives);
  });
  faults.collect([&] { result.nccl.zero_sm = read_boolean(environment, kZeroSmVariable, false); });
  faults.collect(
      [&] { result.nccl.split_share = read_boolean(environment, kSplitShareVariable, false); });
  faults.collect([&] { result.share_gpus = read_boolean(environment, kShareGpusVariable, false); });
  result.trace = variable(environment, kTraceVariable);
  result.flight_record = variable(environment, flight::kRecordVariable, "");
  const std::string memories = variable(environment, kSnapshotMemoryVariable, "");
  for (const std::string_view path : split(memories, ':')) {
    result.snapshot_memory.emplace_back(path);
  }
  result.membership = variable(environment, kMembershipVariable, "");
  result.recording.folder = variable(environment, kRecordVariable, "");
  faults.collect([&] { result.recording.steps = read_record_steps(environment); });
  result.data_record.folder = variable(environment, kDataRecordVariable);
  faults.collect([&] { result.data_record.round = read_data_round(environment); });
  result.identity = read_identity(environment, faults);
  // The fp8 settings are for the program (fp8_settings).
  Settings settings = read_settings(environment, faults, [&](const SettingRow& row) {
    return row.section != Section::fp8 && applies(row.section, result.origin);
  });
  result.program_plugin = program.plugin;
  result.program_values = apply_program_settings(program, settings, faults);
  faults.collect([&] {
    result.check = read_boolean(environment, kCheckVariable, settings.boolean("debug"_key));
  });
  faults.collect([&] { check_parallelism(settings); });
  if (result.origin == "fsdp") {
    faults.collect([&] { check_fsdp(settings); });
  } else if (result.origin == "deepspeed") {
    faults.collect([&] { check_deepspeed(settings); });
  }
  faults.raise();
  result.sharding = sharding_settings(settings, result.origin, result.identity.world_size);
  for (const SettingRow& row : settings.table()) {
    if (settings.given(row)) {
      result.sources.emplace(row.key, settings.source(row).where);
    }
  }
  return result;
}

Fp8Settings fp8_settings(const Environment& environment) {
  Faults faults;
  const Settings settings = read_settings(
      environment, faults, [](const SettingRow& row) { return row.section == Section::fp8; });
  Fp8Settings result;
  const auto refuse = [&](SettingKey key, const std::string& expected, Errc code = Errc::config) {
    throw Error(code, key.text() + " must be " + expected + ", got " + settings.text(key));
  };
  const auto whole = [&](SettingKey key, std::int64_t least, std::int64_t most) {
    const std::int64_t value = settings.integer(key);
    if (value < least || value > most) {
      refuse(key, "from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return static_cast<int>(value);
  };
  faults.collect([&] {
    if (settings.choice("fp8_format"_key) == "E5M2") {
      refuse("fp8_format"_key, "HYBRID or E4M3 (weights and activations are never E5M2)",
             Errc::not_supported);
    }
    result.e5m2_gradients = settings.choice("fp8_format"_key) == "HYBRID";
  });
  faults.collect([&] { result.margin = whole("fp8_margin"_key, -64, 64); });
  faults.collect([&] { result.amax_history = whole("fp8_amax_history_len"_key, 1, 1 << 20); });
  faults.collect([&] {
    if (settings.integer("fp8_interval"_key) != 1) {
      refuse("fp8_interval"_key, "1 (scales are computed in each micro-step)", Errc::not_supported);
    }
  });
  result.amax_max = settings.choice("fp8_amax_compute_algo"_key) == "max";
  faults.collect([&] {
    const SettingKey key = "fp8_override_linear_precision"_key;
    const std::vector<std::string> words = settings.list(key);
    for (std::size_t i = 0; i < result.in_bf16.size(); ++i) {
      const auto word =
          words.size() == result.in_bf16.size() ? parse_boolean(words[i]) : std::optional<bool>();
      if (!word) {
        refuse(key, "three booleans");
      }
      result.in_bf16[i] = *word;
    }
  });
  faults.raise();
  return result;
}

}  // namespace acc::settings
