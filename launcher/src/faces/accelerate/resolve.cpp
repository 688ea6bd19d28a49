#include "faces/accelerate/resolver.hpp"

#include <array>
#include <charconv>

namespace acc::launcher {

namespace fs = std::filesystem;
using plugins::Faults;
using plugins::Section;
using plugins::SettingRow;
using plugins::Source;

namespace {

constexpr std::string_view kCompatVariable = "ACC_COMPAT";

/// A float as Python prints it: Accelerate's flags pass through one.
std::string float_text(const std::string& text) {
  const auto number = plugins::parse_real(text);
  if (!number) {
    return text;
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *number).ptr;
  std::string printed(buffer.data(), end);
  return printed.find_first_of(".e") == std::string::npos ? printed + ".0" : printed;
}

/// Flags of which Accelerate takes the very words of its list; in a file any letter case will do.
bool has_exact_words(const SettingRow& row) {
  return row.type == plugins::Type::choice &&
         (row.section == Section::launch || row.section == Section::dynamo);
}

}  // namespace

const Conduct& conduct_of(const Flags& flags, const plugins::Environment& environment) {
  const Flags::Value* flag = flags.find("compat");
  const std::string word =
      flag != nullptr ? flag->text : plugins::variable(environment, std::string(kCompatVariable));
  return word == "accelerate" ? kAccelerateConduct : kAcclaunchConduct;
}

LaunchPlan Resolver::resolve() {
  plan_.working_directory = facts_.working_directory.string();
  plan_.keeps_exit_status = conduct_.keeps_exit_status;
  find_faults();
  place_on_cores();
  build_environment();
  plan_deepspeed_environment();
  if (settings_.boolean("quiet")) {
    plan_.notices.clear();
  }
  plan_.settings = std::move(settings_);
  return std::move(plan_);
}

void Resolver::find_faults() {
  read_values();
  const bool has_mode = faults_.collect([&] { choose_mode(); }) &&
                        (plan_.mode != Mode::plain || !config_ || !file_.distributed_type.empty());
  const bool placed = faults_.collect([&] { place_workers(); });
  if (has_mode && placed) {
    faults_.collect([&] { choose_device(); });
    faults_.collect([&] { read_rendezvous(); });
  }
  if (has_mode && settings_.has("num_processes")) {
    faults_.collect([&] { read_sharding(); });
  }
  if (faults_.any() && !flags_.faults.any()) {
    faults_.collect([&] { choose_command(); });
  }
  faults_.raise();
  choose_command();  // alone, it tells the shell by the exit status
  say_defaults();
}

std::string Resolver::origin() const {
  return plan_.mode == Mode::fsdp ? "fsdp" : plan_.mode == Mode::deepspeed ? "deepspeed" : "none";
}

std::string Resolver::place(std::string_view key) const {
  const Source& source = settings_.source(key);
  switch (source.kind) {
    case Source::Kind::flag:
    case Source::Kind::environment: return source.where;
    case Source::Kind::file:
    case Source::Kind::deepspeed_file: return source.where + ": " + std::string(key);
    default: return std::string(key);
  }
}

void Resolver::read_values() {
  faults_ = flags_.faults;
  if (config_) {
    file_ = plugins::read_accelerate_config(*config_, settings_,
                                            {.checks_inner_keys = conduct_.checks_inner_keys,
                                             .reads_hidden_keys = conduct_.reads_hidden_keys},
                                            faults_);
    plan_.notices = file_.notices;
  }
  read_compat();
  for (const Flags::Value& value : flags_.values) {
    if (!faults_.collect([&] { read_flag(value); })) {
      file_.faulty_keys.insert(value.key);
    }
  }
}

void Resolver::read_flag(const Flags::Value& value) {
  const SettingRow& row = *plugins::find_setting(value.key);
  settings_.set(value.key, row.type == plugins::Type::real ? float_text(value.text) : value.text,
                {Source::Kind::flag, value.written});
  if (has_exact_words(row) && settings_.choice(value.key) != value.text) {
    throw Error(Errc::config, value.written + " must be " + plugins::expected_value(row) +
                                  ", got \"" + value.text + "\"; did you mean \"" +
                                  settings_.choice(value.key) + "\"?");
  }
}

void Resolver::read_compat() {
  const std::string name(kCompatVariable);
  const std::string word = plugins::variable(environment_, name);
  if (!word.empty()) {
    faults_.collect([&] { settings_.set("compat", word, {Source::Kind::environment, name}); });
  }
}

void Resolver::say_defaults() {
  std::string filled;
  const auto add = [&](const std::string& key) {
    const Source::Kind kind = settings_.source(key).kind;
    if (kind == Source::Kind::default_value || kind == Source::Kind::derived) {
      filled += (filled.empty() ? "--" : ", --") + key + " " + settings_.text(key);
    }
  };
  if (!config_) {
    for (const std::string key :
         {"num_processes", "num_machines", "mixed_precision", "dynamo_backend"}) {
      add(key);
    }
  }
  if (const int threads = omp_threads(); threads > 0 && divides_cores()) {
    filled += (filled.empty() ? "" : ", ") + std::string("--num_cpu_threads_per_process ") +
              std::to_string(threads);
  }
  if (!filled.empty()) {
    notice("filled in: " + filled);
  }
}

void Resolver::choose_mode() {
  check_mode_flags();
  std::string chosen;
  for (const std::string key : {"multi_gpu", "use_fsdp", "use_deepspeed"}) {
    chosen = settings_.boolean(key) ? key : chosen;
  }
  plan_.mode = chosen.empty() ? mode_of_file() : mode_of_flag(chosen);
  if (cpu_flag() && !conduct_.cpu_is_a_device) {
    plan_.mode = Mode::plain;
  } else if (cpu_flag() && plan_.mode == Mode::multi_gpu) {
    notice(file_.distributed_type_where + ": distributed_type MULTI_GPU is not used with --cpu");
    plan_.mode = Mode::plain;
  }
  notice_flags_of_other_modes();
  check_blocks_of_other_modes(chosen);
}

void Resolver::check_mode_flags() const {
  Faults faults;
  std::string chosen;
  const auto choose = [&](const std::string& flag) {
    if (!chosen.empty()) {
      faults.add("--" + chosen + " and --" + flag + " exclude each other; choose one");
    }
    chosen = flag;
  };
  if (cpu_flag() && (settings_.boolean("multi_gpu") || !conduct_.cpu_is_a_device)) {
    choose("cpu");
  }
  for (const std::string key : {"multi_gpu", "use_fsdp", "use_deepspeed"}) {
    if (settings_.boolean(key)) {
      choose(key);
    }
  }
  faults.raise();
}

Mode Resolver::mode_of_flag(const std::string& flag) {
  return flag == "use_fsdp"        ? Mode::fsdp
         : flag == "use_deepspeed" ? Mode::deepspeed
                                   : Mode::multi_gpu;
}

Mode Resolver::mode_of_file() const {
  if (file_.distributed_type == "FSDP")
    return Mode::fsdp;
  if (file_.distributed_type == "DEEPSPEED")
    return Mode::deepspeed;
  if (file_.distributed_type == "MULTI_GPU")
    return Mode::multi_gpu;
  return Mode::plain;
}

void Resolver::notice_flags_of_other_modes() {
  for (const Flags::Value& value : flags_.values) {
    const Section section = plugins::find_setting(value.key)->section;
    if (section == Section::fsdp && plan_.mode != Mode::fsdp) {
      notice(value.written + " has no effect without --use_fsdp");
    } else if (section == Section::deepspeed && plan_.mode != Mode::deepspeed) {
      notice(value.written + " has no effect without --use_deepspeed");
    } else if (section == Section::parallelism && plan_.mode != Mode::fsdp) {
      notice(value.written + " has no effect without --use_fsdp" +
             (plan_.mode == Mode::deepspeed
                  ? "; for hpZ set zero_hpz_partition_size in the DeepSpeed JSON file"
                  : ""));
    } else if (section == Section::fp8 && settings_.choice("mixed_precision") != "fp8") {
      notice(value.written + " has no effect without --mixed_precision fp8");
    }
  }
  if (settings_.boolean("use_parallelism_config") && plan_.mode != Mode::fsdp) {
    throw Error(Errc::config, "--use_parallelism_config needs --use_fsdp");
  }
}

void Resolver::check_blocks_of_other_modes(const std::string& mode_flag) {
  for (const SettingRow& row : plugins::settings_table()) {
    const bool other = (row.section == Section::fsdp && plan_.mode == Mode::deepspeed) ||
                       (row.section == Section::deepspeed && plan_.mode == Mode::fsdp);
    if (!other || settings_.source(row.key).kind != Source::Kind::file) {
      continue;
    }
    if (!mode_flag.empty()) {
      notice(place(row.key) + " has no effect with --" + mode_flag);
    } else if (conduct_.checks_contradictions) {
      faults_.add(place(row.key) + " counts in " +
                  (row.section == Section::fsdp ? "FSDP" : "DeepSpeed") +
                  " mode only, but distributed_type is " + file_.distributed_type + " (" +
                  file_.distributed_type_where + "); take one out");
    }
  }
}

std::filesystem::path default_config_path(const plugins::Environment& environment) {
  const std::string home = plugins::variable(environment, "HOME", "/");
  const std::string cache = plugins::variable(environment, "XDG_CACHE_HOME", home + "/.cache");
  const fs::path base = plugins::variable(environment, "HF_HOME", cache + "/huggingface");
  return base / "accelerate" / "default_config.yaml";
}

std::optional<plugins::Document> load_config(const Flags& flags,
                                             const plugins::Environment& environment) {
  if (const Flags::Value* named = flags.find("config_file")) {
    return plugins::load_document(named->text);
  }
  if (flags.find("use_cpu") != nullptr && !conduct_of(flags, environment).cpu_is_a_device) {
    return std::nullopt;
  }
  const fs::path path = default_config_path(environment);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return std::nullopt;
  }
  return plugins::load_document(path);
}

LaunchPlan resolve(const Flags& flags, const std::optional<plugins::Document>& config,
                   const plugins::Environment& environment, const HostFacts& facts) {
  return Resolver(flags, config, environment, facts).resolve();
}

}  // namespace acc::launcher
