#include "faces/accelerate/resolver.hpp"
#include "plan/program_command.hpp"

#include <array>
#include <charconv>

namespace acc::launcher {

namespace fs = std::filesystem;
using plugins::Faults;
using plugins::Section;
using plugins::SettingRow;
using plugins::Source;

namespace {

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

}  // namespace

LaunchPlan Resolver::resolve() {
  read_values();
  choose_mode();
  place_workers();
  choose_device();
  place_on_cores();
  read_rendezvous();
  read_sharding();
  plan_.command = program_command(
      flags_, {settings_.boolean("module"), settings_.boolean("no_python")}, environment_, facts_);
  plan_.working_directory = facts_.working_directory.string();
  build_environment();
  if (settings_.boolean("quiet")) {
    plan_.notices.clear();
  }
  plan_.settings = std::move(settings_);
  return std::move(plan_);
}

std::string Resolver::origin() const {
  return plan_.mode == Mode::fsdp ? "fsdp" : plan_.mode == Mode::deepspeed ? "deepspeed" : "none";
}

void Resolver::read_values() {
  Faults faults;
  if (config_) {
    faults.collect([&] { file_ = plugins::apply_accelerate_config(*config_, settings_); });
    plan_.notices = file_.notices;
  }
  for (const Flags::Value& value : flags_.values) {
    const bool real = plugins::find_setting(value.key)->type == plugins::Type::real;
    faults.collect([&] {
      settings_.set(value.key, real ? float_text(value.text) : value.text,
                    {Source::Kind::flag, value.written});
    });
  }
  faults.raise();
}

void Resolver::choose_mode() {
  Faults faults;
  std::string chosen;
  for (const std::string key : {"multi_gpu", "use_fsdp", "use_deepspeed"}) {
    if (!settings_.boolean(key)) {
      continue;
    }
    if (!chosen.empty()) {
      faults.add("--" + chosen + " and --" + key + " exclude each other; choose one mode");
    }
    chosen = key;
  }
  if (settings_.boolean("multi_gpu") && cpu_flag()) {
    faults.add("--multi_gpu and --cpu exclude each other; choose one");
  }
  faults.raise();
  plan_.mode = chosen.empty() ? mode_of_file() : mode_of_flag(chosen);
  check_flags_of_other_modes(faults);
  check_blocks_of_other_modes(faults, chosen);
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

void Resolver::check_flags_of_other_modes(Faults& faults) const {
  for (const Flags::Value& value : flags_.values) {
    const Section section = plugins::find_setting(value.key)->section;
    if (section == Section::fsdp && plan_.mode != Mode::fsdp) {
      faults.add(value.written + " counts in FSDP mode only; add --use_fsdp or take it out");
    } else if (section == Section::deepspeed && plan_.mode != Mode::deepspeed) {
      faults.add(value.written +
                 " counts in DeepSpeed mode only; add --use_deepspeed or take it out");
    } else if (section == Section::parallelism && plan_.mode != Mode::fsdp) {
      faults.add(value.written + " counts in FSDP mode only" +
                 (plan_.mode == Mode::deepspeed
                      ? "; for hpZ set zero_hpz_partition_size in the DeepSpeed JSON file"
                      : "; add --use_fsdp or take it out"));
    }
  }
  if (settings_.boolean("use_parallelism_config") && plan_.mode != Mode::fsdp) {
    faults.add("--use_parallelism_config counts in FSDP mode only; add --use_fsdp");
  }
}

void Resolver::check_blocks_of_other_modes(Faults& faults, const std::string& mode_flag) {
  for (const SettingRow& row : plugins::settings_table()) {
    const bool other = (row.section == Section::fsdp && plan_.mode == Mode::deepspeed) ||
                       (row.section == Section::deepspeed && plan_.mode == Mode::fsdp);
    if (!other || settings_.source(row.key).kind != Source::Kind::file) {
      continue;
    }
    const std::string where = settings_.source(row.key).where + ": " + std::string(row.key);
    if (mode_flag.empty()) {
      faults.add(where + " counts in " + (row.section == Section::fsdp ? "FSDP" : "DeepSpeed") +
                 " mode only, but distributed_type is " + file_.distributed_type);
    } else {
      notice(where + " has no effect with --" + mode_flag);
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
