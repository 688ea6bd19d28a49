#include "acc/plugins/environment.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/deepspeed_plugin.hpp"
#include "acc/plugins/faults.hpp"
#include "acc/plugins/fsdp_plugin.hpp"

#include <unistd.h>

#include <limits>
#include <numeric>

namespace acc::plugins {
namespace {

constexpr std::string_view kOriginVariable = "ACC_MODE";
constexpr std::string_view kDeviceVariable = "ACC_DEVICE";
// For the runtime alone; the launcher hands them on as it finds them.
constexpr std::string_view kTimeoutVariable = "ACC_COLLECTIVE_TIMEOUT";
constexpr std::string_view kShmGatherVariable = "ACC_SHM_GATHER";
constexpr std::string_view kCollectivesVariable = "ACC_COLLECTIVES";
constexpr std::string_view kShareGpusVariable = "ACC_SHARE_GPUS";
constexpr std::string_view kTraceVariable = "ACC_TRACE";
// From the launcher, where machines differ.
constexpr std::string_view kLocalWorldSizesVariable = "ACC_LOCAL_WORLD_SIZES";

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

/// What Accelerate leaves out while the setting that gives it a meaning is off.
bool has_meaning(const SettingRow& row, const Settings& settings) {
  if (row.section == Section::fp8) {
    return settings.choice("mixed_precision") == "fp8";
  }
  if (row.section == Section::parallelism && !settings.boolean("use_parallelism_config")) {
    return false;
  }
  if (row.key == "parallelism_config_cp_comm_strategy") {
    return settings.integer("parallelism_config_cp_size") > 1;
  }
  if (row.key.starts_with("parallelism_config_sp_seq") ||
      row.key == "parallelism_config_sp_attn_implementation") {
    return settings.integer("parallelism_config_sp_size") > 1;
  }
  return true;
}

/// The text that Accelerate's own variable gets, or nothing.
std::optional<std::string> accelerate_text(const SettingRow& row, const Settings& settings,
                                           bool hand_on_parallelism) {
  const bool own_value = settings.source(row.key).kind == Source::Kind::deepspeed_file;
  const std::string text =
      own_value ? std::string(row.fallback) : settings.text(row.key);  // as Accelerate leaves it
  const bool always = row.exported == Export::always ||
                      (row.section == Section::parallelism && hand_on_parallelism);
  if (row.environment.empty() || text.empty() || !has_meaning(row, settings)) {
    return std::nullopt;
  }
  if (row.exported == Export::when_true && !settings.boolean(row.key)) {
    return std::nullopt;
  }
  if (row.exported == Export::given && !always && (own_value || !settings.given(row.key))) {
    return std::nullopt;
  }
  return text;
}

/// Sets the variable of a row, or those of a list.
void export_text(const SettingRow& row, const std::string& text, Environment& environment) {
  const auto names = split(row.environment, '|');
  const auto parts = split(text, ',');
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string part =
        names.size() == 1 ? text : std::string(i < parts.size() ? parts[i] : "");
    environment.emplace(names[i], formatted(row.format, part));
  }
}

/// Whether the setting needs a variable of ours beside or instead of Accelerate's.
bool needs_own_variable(const SettingRow& row, const Settings& settings, std::string_view origin) {
  if (!reaches_workers(row)) {
    return false;
  }
  const Source::Kind kind = settings.source(row.key).kind;
  if (kind == Source::Kind::default_value) {
    return false;
  }
  return kind == Source::Kind::deepspeed_file || row.environment.empty() ||
         (row.section == Section::parallelism && !settings.boolean("use_parallelism_config")) ||
         (row.section == Section::training && origin != "deepspeed");
}

const std::string* value_of(const Environment& environment, std::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? nullptr : &found->second;
}

bool is_on(const Environment& environment, std::string_view name) {
  const std::string* value = value_of(environment, name);
  return value != nullptr && parse_boolean(*value).value_or(false);
}

Error bad_variable(std::string_view name, const std::string& value, const std::string& expected) {
  return Error(Errc::config,
               std::string(name) + " must be " + expected + ", got \"" + value + "\"");
}

std::string read_origin(const Environment& environment) {
  if (const std::string* origin = value_of(environment, kOriginVariable)) {
    if (*origin != "none" && *origin != "fsdp" && *origin != "deepspeed") {
      throw bad_variable(kOriginVariable, *origin, "none, fsdp or deepspeed");
    }
    return *origin;
  }
  const bool fsdp = is_on(environment, "ACCELERATE_USE_FSDP");
  const bool deepspeed = is_on(environment, "ACCELERATE_USE_DEEPSPEED");
  if (fsdp && deepspeed) {
    throw Error(Errc::config,
                "ACCELERATE_USE_FSDP and ACCELERATE_USE_DEEPSPEED are both set; unset one");
  }
  return fsdp ? "fsdp" : deepspeed ? "deepspeed" : "none";
}

Device read_device(const Environment& environment) {
  const std::string* device = value_of(environment, kDeviceVariable);
  if (device == nullptr || *device == "cpu") {
    return Device::cpu;
  }
  if (*device != "cuda") {
    throw bad_variable(kDeviceVariable, *device, "cpu or cuda");
  }
  return Device::cuda;
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

DeviceCollectives read_device_collectives(const Environment& environment) {
  const std::string* name = value_of(environment, kCollectivesVariable);
  if (name == nullptr) {
    return DeviceCollectives::automatic;
  }
  for (const auto value :
       {DeviceCollectives::automatic, DeviceCollectives::nccl, DeviceCollectives::staged}) {
    if (to_string(value) == *name) {
      return value;
    }
  }
  throw bad_variable(kCollectivesVariable, *name, "auto, nccl or staged");
}

bool read_share_gpus(const Environment& environment) {
  const std::string* text = value_of(environment, kShareGpusVariable);
  const auto value = text == nullptr ? std::optional(false) : parse_boolean(*text);
  if (!value) {
    throw bad_variable(kShareGpusVariable, *text, "true or false");
  }
  return *value;
}

Settings read_settings(const Environment& environment, std::string_view origin, Faults& faults) {
  Settings settings;
  const auto read = [&](const SettingRow& row, const std::string& variable) {
    const std::string* value = value_of(environment, variable);
    if (value == nullptr || value->empty()) {
      return false;
    }
    faults.collect([&] { settings.set(row.key, *value, {Source::Kind::environment, variable}); });
    return true;
  };
  for (const SettingRow& row : settings_table()) {
    const bool programs_own = row.section == Section::fp8;
    if (!reaches_workers(row) || programs_own || !applies(row.section, origin)) {
      continue;
    }
    if (!read(row, own_variable(row)) && !row.environment.empty()) {
      read(row, std::string(row.environment));
    }
  }
  return settings;
}

class IdentityReader {
 public:
  IdentityReader(const Environment& environment, Faults& faults)
      : environment_(environment), faults_(faults) {}

  int number(std::string_view name, int fallback, int low,
             int high = std::numeric_limits<int>::max()) {
    const std::string* value = value_of(environment_, name);
    if (value == nullptr) {
      return fallback;
    }
    const auto parsed = parse_integer(*value);
    if (parsed && *parsed >= low && *parsed <= high) {
      return static_cast<int>(*parsed);
    }
    faults_.collect([&] {
      const std::string range = high == std::numeric_limits<int>::max()
                                    ? " of at least " + std::to_string(low)
                                    : " " + std::to_string(low) + ".." + std::to_string(high);
      throw bad_variable(name, *value, "an integer" + range);
    });
    return fallback;
  }

  /// `name`, or the name that it has in DeepSpeed's launcher.
  std::string_view either(std::string_view name, std::string_view deepspeed_name) const {
    const bool deepspeed = value_of(environment_, name) == nullptr &&
                           value_of(environment_, deepspeed_name) != nullptr &&
                           value_of(environment_, "WORLD_SIZE") != nullptr;
    return deepspeed ? deepspeed_name : name;
  }

  std::string text(std::string_view name, std::string fallback) {
    const std::string* value = value_of(environment_, name);
    return value == nullptr ? std::move(fallback) : *value;
  }

 private:
  const Environment& environment_;
  Faults& faults_;
};

/// torchrun's variables tell a worker nothing of the other machines but how many there are.
std::vector<int> read_local_world_sizes(const Environment& environment,
                                        const WorkerIdentity& identity) {
  const std::string* text = value_of(environment, kLocalWorldSizesVariable);
  if (text == nullptr) {
    if (identity.num_nodes > 1 &&
        identity.local_world_size * identity.num_nodes != identity.world_size) {
      throw Error(
          Errc::config,
          "the " + std::to_string(identity.num_nodes) + " machines have differently many of the " +
              std::to_string(identity.world_size) + " ranks; acclaunch says in " +
              std::string(kLocalWorldSizesVariable) + " how many each has, and it is not set");
    }
    return {};
  }
  std::vector<int> sizes;
  for (const std::string_view part : split(*text, ',')) {
    sizes.push_back(static_cast<int>(parse_integer(part).value_or(0)));
  }
  const auto node = static_cast<std::size_t>(identity.node_rank);
  if (std::ssize(sizes) != identity.num_nodes || sizes[node] != identity.local_world_size ||
      std::accumulate(sizes.begin(), sizes.end(), 0) != identity.world_size) {
    throw bad_variable(kLocalWorldSizesVariable, *text,
                       "the LOCAL_WORLD_SIZE of each of the " + std::to_string(identity.num_nodes) +
                           " machines, " + std::to_string(identity.world_size) + " in all");
  }
  return sizes;
}

WorkerIdentity read_identity(const Environment& environment, Faults& faults) {
  IdentityReader reader(environment, faults);
  WorkerIdentity identity;
  identity.world_size = reader.number("WORLD_SIZE", 1, 1);
  identity.rank = reader.number("RANK", 0, 0, identity.world_size - 1);
  identity.local_world_size = reader.number(reader.either("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
                                            identity.world_size, 1, identity.world_size);
  identity.local_rank = reader.number("LOCAL_RANK", 0, 0, identity.local_world_size - 1);
  identity.num_nodes = reader.number(reader.either("GROUP_WORLD_SIZE", "CROSS_SIZE"), 1, 1);
  identity.node_rank =
      reader.number(reader.either("GROUP_RANK", "CROSS_RANK"), 0, 0, identity.num_nodes - 1);
  identity.master_addr = reader.text("MASTER_ADDR", "");
  identity.master_port = static_cast<std::uint16_t>(reader.number("MASTER_PORT", 0, 0, 65535));
  identity.run_id = reader.text("TORCHELASTIC_RUN_ID", "none");
  identity.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, 0);
  faults.collect(
      [&] { identity.local_world_sizes = read_local_world_sizes(environment, identity); });
  return identity;
}

/// The launcher hands these on to Python programs; this runtime has data parallelism only.
void check_parallelism(const Settings& settings) {
  for (const std::string_view key :
       {"parallelism_config_tp_size", "parallelism_config_cp_size", "parallelism_config_sp_size"}) {
    if (settings.integer(key) > 1) {
      throw Error(Errc::config, std::string(key) + " must be 1, got " + settings.text(key) +
                                    ": the acclaunch runtime splits data and parameters only");
    }
  }
}

MixedPrecision precision_named(std::string_view name) {
  for (const auto value : {MixedPrecision::fp16, MixedPrecision::bf16, MixedPrecision::fp8}) {
    if (to_string(value) == name) {
      return value;
    }
  }
  return MixedPrecision::no;
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

ShardingSettings sharding_settings(const Settings& settings, std::string_view origin,
                                   int world_size, int local_world_size) {
  ShardingSettings result;
  if (origin == "fsdp") {
    result = FullyShardedDataParallelPlugin::from_settings(settings).to_sharding_settings(
        world_size, local_world_size);
  } else if (origin == "deepspeed") {
    result = DeepSpeedPlugin::from_settings(settings).to_sharding_settings(world_size);
  }
  result.mixed_precision = precision_named(settings.choice("mixed_precision"));
  result.gradient_accumulation_steps =
      static_cast<int>(settings.integer("gradient_accumulation_steps"));
  if (settings.has("gradient_clipping")) {
    result.gradient_clipping = settings.real("gradient_clipping");
  }
  return result;
}

Environment settings_to_environment(const Settings& settings, std::string_view origin,
                                    Device device) {
  Environment result;
  result.emplace(kOriginVariable, origin);
  result.emplace(kDeviceVariable, to_string(device));
  if (origin == "fsdp") {
    result.emplace("ACCELERATE_USE_FSDP", "true");
  } else if (origin == "deepspeed") {
    result.emplace("ACCELERATE_USE_DEEPSPEED", "true");
  }
  const bool hand_on_parallelism = settings.boolean("use_parallelism_config");
  for (const SettingRow& row : settings_table()) {
    if (!applies(row.section, origin)) {
      continue;
    }
    if (needs_own_variable(row, settings, origin)) {
      result.emplace(own_variable(row), settings.text(row.key));
    }
    if (row.section == Section::training && origin != "deepspeed") {
      continue;  // only DeepSpeed mode sends these in Accelerate
    }
    if (auto text = accelerate_text(row, settings, hand_on_parallelism)) {
      export_text(row, *text, result);
    }
  }
  return result;
}

RuntimeSettings settings_from_environment(const Environment& environment) {
  Faults faults;
  RuntimeSettings result;
  faults.collect([&] { result.origin = read_origin(environment); });
  faults.collect([&] { result.device = read_device(environment); });
  faults.collect([&] { result.collective_timeout = read_collective_timeout(environment); });
  faults.collect([&] { result.copy_gathers = read_copy_gathers(environment); });
  faults.collect([&] { result.device_collectives = read_device_collectives(environment); });
  faults.collect([&] { result.share_gpus = read_share_gpus(environment); });
  result.trace = variable(environment, std::string(kTraceVariable), "");
  result.identity = read_identity(environment, faults);
  const Settings settings = read_settings(environment, result.origin, faults);
  faults.collect([&] { check_parallelism(settings); });
  faults.raise();
  result.sharding = sharding_settings(settings, result.origin, result.identity.world_size,
                                      result.identity.local_world_size);
  return result;
}

}  // namespace acc::plugins
