// SPDX-License-Identifier: Apache-2.0
// Compatibility mode (`--compat accelerate`): reproduces how `accelerate launch` 1.15 computes its
// arguments (commands/launch.py: launch_command_parser, _validate_launch_command) and the workers'
// variables (utils/launch.py: prepare_simple_launcher_cmd_env, prepare_multi_gpu_env,
// prepare_deepspeed_cmd_env). The steps: defaults of the flags, given flags, then `Merge` adds the
// configuration file as Accelerate does. `Checker` finds the values that make Accelerate's launcher
// stop. Values keep their Python type, because str() of them is what the workers get.
#include "accelerate_cli/arguments.hpp"

#include "acc/base/variables.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/settings/settings.hpp"
#include "accelerate_cli/python_values.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

namespace acc::launcher::accelerate_cli {
namespace {

using namespace std::string_view_literals;
using documents::Document;
using documents::Node;
using settings::Environment;
using settings::Export;
using settings::Faults;
using settings::Flag;
using settings::Section;
using settings::SettingRow;
using settings::TextFormat;
using settings::Type;

/// Flags with `choices`: argparse compares their text with a list of words.
constexpr std::array kChoices = {"mixed_precision"sv,
                                 "dynamo_backend"sv,
                                 "dynamo_mode"sv,
                                 "fsdp_version"sv,
                                 "fp8_backend"sv,
                                 "fp8_format"sv,
                                 "fp8_amax_compute_algo"sv,
                                 "fp8_opt_level"sv,
                                 "parallelism_config_cp_backend"sv,
                                 "parallelism_config_sp_backend"sv};
/// Flags with `type=str_to_bool`, which returns 1 or 0.
constexpr std::array kTruthValues = {"fp8_enable_fsdp_float8_all_gather"sv, "fp8_pad_inner_dim"sv};
constexpr std::string_view kOverrides = "fp8_override_linear_precision";
/// Flag with `type=bool`: every text except the empty one gives True.
constexpr std::string_view kIsVariable = "parallelism_config_sp_seq_length_is_variable";
/// Top-level key of the file that replaces a flag's default, and its value if the key is missing.
struct TopKey {
  std::string_view key;
  Node::Kind kind;
  std::string_view fallback;
};
constexpr std::array kTopKeys = {
    TopKey{"use_cpu", Node::Kind::boolean, "false"},
    TopKey{"num_processes", Node::Kind::number, "-1"},
    TopKey{"machine_rank", Node::Kind::number, "0"},
    TopKey{"num_machines", Node::Kind::number, "1"},
    TopKey{"gpu_ids", Node::Kind::null, ""},
    TopKey{"main_process_ip", Node::Kind::null, ""},
    TopKey{"main_process_port", Node::Kind::null, ""},
    TopKey{"mixed_precision", Node::Kind::null, ""},
};
/// Block of the configuration file. Later blocks override earlier ones.
struct Block {
  std::string_view name;
  std::string_view prefix;   ///< is added to a key …
  std::string_view present;  ///< … that does not begin with this
};
constexpr std::array kBlocks = {Block{settings::block_of(Section::fp8), "fp8_", "fp8"},
                                Block{settings::block_of(Section::deepspeed), "", ""},
                                Block{settings::block_of(Section::fsdp), "fsdp_", "fsdp"},
                                Block{settings::block_of(Section::parallelism), "", ""},
                                Block{"mpirun_config", "", ""},
                                Block{settings::block_of(Section::dynamo), "dynamo_", "dynamo_"}};
/// Accelerate's list for --dynamo_backend misspells this word, so the flag rejects it.
constexpr std::string_view kMisspelled = "torchxla_trace_once";
/// Backends that are accepted in the file only, since the flag's list lacks them.
constexpr std::array kMoreDynamoBackends = {"hpu_backend"sv, "neuron"sv};

bool contains(const auto& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

Node node_of(Node::Kind kind, std::string_view text) {
  Node node;
  node.kind = kind;
  node.text = text;
  return node;
}

Node truth_value(std::string_view text) {
  return Node::number(settings::parse_boolean(text).value_or(false) ? 1 : 0);
}

/// Returns the default that argparse has for a flag. Most of the flags without a fallback, and
/// those whose variable is set only if the flag is given, default to None.
Node default_of(const SettingRow& row) {
  const bool set_when_given = row.exported == Export::given && row.section != Section::parallelism;
  if (contains(kTruthValues, row.key)) {
    return truth_value(row.fallback);
  }
  if (row.key == kOverrides) {
    Node list = node_of(Node::Kind::list, "");
    list.items.assign(3, Node::boolean(false));
    return list;
  }
  const bool is_none = row.fallback.empty() || row.fallback == "None" || set_when_given ||
                       row == "mixed_precision"_key || row == "dynamo_backend"_key;
  if (is_none) {
    return {};
  }
  const bool is_boolean = row.flag == Flag::toggle || row.key == kIsVariable;
  return node_of(is_boolean                                               ? Node::Kind::boolean
                 : row.type == Type::integer && row != "fsdp_version"_key ? Node::Kind::number
                                                                          : Node::Kind::string,
                 row.fallback);
}

/// Converts a flag's text to the Python value that argparse makes of it.
Node flag_value(const SettingRow& row, const std::string& text) {
  if (contains(kTruthValues, row.key)) {
    return truth_value(text);
  }
  if (row.key == kOverrides) {
    Node list = node_of(Node::Kind::list, "");
    for (const std::string_view part : split(text, ',')) {
      list.items.push_back(truth_value(part));
    }
    return list;
  }
  if (row.flag != Flag::value || row.key == kIsVariable) {
    return Node::boolean(!text.empty());
  }
  if (row.type == Type::integer && row != "fsdp_version"_key) {
    return Node::number(parse_integer(text).value_or(0));
  }
  if (row.type == Type::real) {
    return Node::number(python::float_text(settings::parse_real(text).value_or(0.0)));
  }
  return Node::string(text);
}

/// Merges a configuration file into the arguments, as _validate_launch_command does: a value of the
/// file replaces a default, never a given flag.
class Merge {
 public:
  Merge(Arguments& arguments, const Flags& flags, const Node& root)
      : arguments_(arguments), flags_(flags), root_(root) {}

  void run() {
    merge_mode();
    for (const TopKey& top : kTopKeys) {
      if (!is_flag(top.key)) {
        const Node* found = root_.find(top.key);
        arguments_[std::string(top.key)] =
            found != nullptr ? *found : node_of(top.kind, top.fallback);
      }
    }
    merge_defaults();
    merge_blocks();
  }

 private:
  [[nodiscard]] bool is_flag(std::string_view key) const {
    return std::ranges::find(flags_.values, key, &Flags::Value::key) != flags_.values.end();
  }

  Node& at(std::string_view key) { return arguments_[std::string(key)]; }

  void merge_mode() {
    const auto is_given = [&](const ModeFlag& flag) { return is_flag(flag.key.name()); };
    if (std::ranges::none_of(kModeFlags, is_given)) {
      const Node* block = root_.find("parallelism_config");
      at("use_parallelism_config") = Node::boolean(block != nullptr && !is_empty_map(*block));
    }
  }

  static bool is_empty_map(const Node& node) {
    return node.kind == Node::Kind::null || (node.kind == Node::Kind::map && node.entries.empty());
  }

  void merge_defaults() {
    const Node* type = root_.find("distributed_type");
    const bool is_no = type != nullptr && python::is_text(*type) && type->text == "NO";
    if (is_no && root_.find("num_processes") == nullptr && !is_flag("num_processes")) {
      at("num_processes") = Node::number(1);
    }
    const Node* debug = root_.find("debug");
    if (!python::is_true(at("debug")) && debug != nullptr) {
      at("debug") = *debug;
    }
    const Node* fp16 = root_.find("fp16");
    if (!is_flag("mixed_precision") && root_.find("mixed_precision") == nullptr &&
        fp16 != nullptr && python::is_true(*fp16)) {
      at("mixed_precision") = Node::string("fp16");
    }
  }

  void merge_blocks() {
    for (const Block& block : kBlocks) {
      const Node* found = root_.find(block.name);
      const Node* old_backend = root_.find("dynamo_backend");
      if (block.name == "dynamo_config" && old_backend != nullptr) {  // old key, replaces the block
        if (python::str(*old_backend) != "NO") {
          merge_entry(block, "dynamo_backend", *old_backend);
        }
      } else if (found != nullptr) {
        for (const auto& [key, value] : found->entries) {
          merge_entry(block, key, value);
        }
      }
    }
  }

  void merge_entry(const Block& block, const std::string& key, const Node& value) {
    const std::string name = key.starts_with(block.present) ? key : std::string(block.prefix) + key;
    if (!is_flag(name)) {
      at(name) = value;
    }
  }

  Arguments& arguments_;
  const Flags& flags_;
  const Node& root_;
};

/// Finds arguments that make Accelerate's launcher raise an exception, and adds a fault for each.
class Checker {
 public:
  Checker(const Arguments& arguments, const ArgumentChecks& checks, Faults& faults)
      : arguments_(arguments), checks_(checks), faults_(faults) {}

  void run() {
    check_counts();
    check_gpu_ids();
    check_precision();
    if (checks_.mode != Mode::deepspeed) {
      check_dynamo();
    }
    if (checks_.mode == Mode::plain) {
      check_simple_mode();
    } else {
      check_torchrun_mode();
    }
    if (checks_.mode == Mode::fsdp) {
      check_needs();
    }
  }

 private:
  [[nodiscard]] const Node& at(std::string_view key) const {
    static const Node kNone;
    const auto found = arguments_.find(key);
    return found == arguments_.end() ? kNone : found->second;
  }

  [[nodiscard]] bool is_none(std::string_view key) const {
    return at(key).kind == Node::Kind::null;
  }

  /// Returns the origin of an argument for messages: `c.yaml:3: zero_stage`, or `--zero_stage`.
  [[nodiscard]] std::string place(std::string_view key) const {
    const std::string& where = at(key).where;
    return where.empty() ? "--" + std::string(key) : where + ": " + std::string(key);
  }

  void expect(bool condition, std::string_view key, const std::string& expected) {
    if (!condition) {
      faults_.add(place(key) + " must be " + expected + ", got " + python::described(at(key)));
    }
  }

  void check_number(std::string_view key) {
    expect(python::number(at(key)).has_value(), key, "a number");
  }
  void check_text(std::string_view key) { expect(python::is_text(at(key)), key, "a text"); }

  void check_counts() {
    check_number("num_machines");
    const auto count = python::number(at("num_processes"));
    if (checks_.has_config && count == -1.0) {
      faults_.add("--num_processes is missing, and the configuration file does not set it either");
    }
    if (python::is_true(at("use_cpu")) && !checks_.threads_are_given) {
      check_number("num_processes");  // divides the cores by it
    }
  }

  /// With a configuration file, Accelerate rejects a single GPU id for MULTI_GPU on one machine.
  void check_gpu_ids() {
    check_text("gpu_ids");
    const Node& ids = at("gpu_ids");
    const bool is_one =
        python::is_text(ids) && ids.text != "all" && ids.text.find(',') == std::string::npos;
    const bool several = python::number(at("num_machines")).value_or(1.0) > 1.0;
    if (is_one && !several && checks_.has_config && checks_.mode == Mode::multi_gpu) {
      faults_.add(place("gpu_ids") + " \"" + ids.text + "\" is one GPU, but MULTI_GPU is for " +
                  "several; list more with --gpu_ids, or remove MULTI_GPU");
    }
  }

  void check_precision() {
    const SettingRow& row = *settings::find_setting("mixed_precision"_key.name());
    const Node& precision = at("mixed_precision");
    const bool known =
        python::is_text(precision) && contains(split(row.allowed, '|'), lower(precision.text));
    expect(known, "mixed_precision", settings::expected_value(row));
    if (known && lower(precision.text) == "fp8" && !checks_.has_fp8_library()) {
      faults_.add(place("mixed_precision") +
                  " fp8 needs Transformer Engine, MS-AMP or torchao, but the program's Python has "
                  "none of them installed");
    }
  }

  void check_dynamo() {
    const SettingRow& row = *settings::find_setting("dynamo_backend"_key.name());
    const Node& backend = at("dynamo_backend");
    const std::string name = lower(backend.text);
    const bool known =
        contains(split(row.allowed, '|'), name) || contains(kMoreDynamoBackends, name);
    expect(python::is_text(backend) && known, "dynamo_backend", settings::expected_value(row));
  }

  /// Checks of Accelerate's launcher for one process (prepare_simple_launcher_cmd_env), which calls
  /// string methods on these values.
  void check_simple_mode() {
    if (!is_none("num_processes")) {
      check_number("num_processes");
    }
    const bool on_cpu = python::is_true(at("cpu"));
    expect(on_cpu || settings::parse_boolean(python::str(at("use_cpu"))).has_value(), "use_cpu",
           "true or false");
    check_text("dynamo_mode");
    if (!is_none("main_process_ip") && python::number(at("num_processes")).value_or(0.0) > 1.0) {
      check_text("main_process_ip");
    }
  }

  /// Checks of the modes in which Accelerate calls torchrun. With one machine it passes
  /// num_processes as text, with several it divides num_processes by their number.
  void check_torchrun_mode() {
    const bool several = python::number(at("num_machines")).value_or(1.0) > 1.0;
    const Node& count = at("num_processes");
    const bool as_word = !several && parse_integer(python::str(count)).has_value() &&
                         count.kind != Node::Kind::boolean;
    expect((as_word || python::is_integer(count)) && at_least_1(python::str(count)),
           "num_processes", "an integer of at least 1");
    constexpr double kLastPort = std::numeric_limits<std::uint16_t>::max();
    const Node& port = at("main_process_port");
    const bool is_port = python::is_integer(port) && *python::number(port) >= 0.0 &&
                         *python::number(port) <= kLastPort;
    expect(is_port || is_none("main_process_port"), "main_process_port", "an integer 0..65535");
    if (several) {
      const Node& rank = at("machine_rank");
      expect(parse_integer(python::str(rank)).has_value(), "machine_rank", "an integer");
    }
    if (python::is_true(at("use_parallelism_config"))) {
      check_number("parallelism_config_cp_size");
      check_number("parallelism_config_sp_size");
    }
  }

  static bool at_least_1(const std::string& count) { return parse_integer(count).value_or(0) >= 1; }

  void check_needs() {
    for (const SettingRow& row : settings::settings_table()) {
      if (python::is_true(at(row.key)) && !row.needs.empty() && !python::is_true(at(row.needs))) {
        const std::string& where = at(row.key).where;
        faults_.add((where.empty() ? "" : where + ": ") + "--" + std::string(row.key) + " " +
                    python::str(at(row.key)) + " needs --" + std::string(row.needs) +
                    " true, but " + at(row.needs).where + " says " +
                    python::described(at(row.needs)));
      }
    }
  }

  const Arguments& arguments_;
  const ArgumentChecks& checks_;
  Faults& faults_;
};

std::string formatted(TextFormat format, const std::string& text) {
  return format == TextFormat::lower   ? lower(text)
         : format == TextFormat::upper ? upper(text)
                                       : text;
}

/// True if Accelerate sets the variable of this row in this mode.
bool is_written(const SettingRow& row, const Arguments& arguments, Mode mode) {
  switch (row.section) {
    case Section::fsdp: return mode == Mode::fsdp;
    case Section::training:
    case Section::deepspeed: return mode == Mode::deepspeed;
    case Section::dynamo: return mode != Mode::deepspeed;
    case Section::parallelism:
      return mode != Mode::plain && python::is_true(arguments.at("use_parallelism_config")) &&
             (row.of_several.empty() ||
              python::number(arguments.find(row.of_several)->second).value_or(0.0) > 1.0);
    case Section::launch: return row.exported == Export::always;
    case Section::zero:
    case Section::fp8: return false;
  }
  return false;
}

/// Adds a variable for every argument whose name begins with `fp8_`, including keys that only the
/// file has.
void add_fp8_variables(const Arguments& arguments, Environment& environment) {
  constexpr std::array kParts = {"FPROP", "DGRAD", "WGRAD"};
  for (const auto& [key, value] : arguments) {
    if (!key.starts_with("fp8_") || value.kind == Node::Kind::null) {
      continue;
    }
    if (key != kOverrides) {
      environment["ACCELERATE_" + upper(key)] = python::str(value);
      continue;
    }
    for (std::size_t i = 0; i < kParts.size() && i < value.items.size(); ++i) {
      environment[std::string("ACCELERATE_FP8_OVERRIDE_") + kParts[i]] =
          python::str(value.items[i]);
    }
  }
}

}  // namespace

std::optional<std::string> argparse_expectation(const SettingRow& row, const std::string& text) {
  bool fits = true;
  if (contains(kChoices, row.key)) {
    constexpr std::string_view kVersions = "1|2";
    const auto words = split(row == "fsdp_version"_key ? kVersions : row.allowed, '|');
    fits = contains(words, text) && text != kMisspelled;
  } else if (contains(kTruthValues, row.key)) {
    fits = settings::parse_boolean(text).has_value();
  } else if (row.key == kOverrides) {
    fits = std::ranges::all_of(split(text, ','), [](std::string_view part) {
      return settings::parse_boolean(part).has_value();
    });
  } else if (row.type == Type::integer) {
    fits = parse_integer(text).has_value();
  } else if (row.type == Type::real) {
    fits = settings::parse_real(text).has_value();
  }
  return fits ? std::nullopt : std::optional(settings::expected_value(row));
}

Arguments merged_arguments(const Flags& flags, const std::optional<Document>& config, int gpus) {
  Arguments arguments;
  for (const SettingRow& row : settings::settings_table()) {
    arguments[std::string(row.key)] = default_of(row);
  }
  for (const Flags::Value& value : flags.values) {
    if (const SettingRow* row = settings::find_setting(value.key)) {
      arguments[value.key] = flag_value(*row, value.text);
    }
  }
  arguments["cpu"] = Node::boolean(flags.find("use_cpu"_key) != nullptr);
  if (config) {
    Merge(arguments, flags, config->root).run();
  } else if (flags.find("num_processes"_key) == nullptr) {
    arguments["num_processes"] = Node::number(gpus);
  }
  const auto fill = [&](const std::string& key, const std::string& text) {
    if (arguments[key].kind == Node::Kind::null) {
      arguments[key] = Node::string(text);
    }
  };
  fill("gpu_ids", "all");
  fill("mixed_precision", "no");
  fill("dynamo_backend", "no");
  return arguments;
}

void check_arguments(const Arguments& arguments, const ArgumentChecks& checks, Faults& faults) {
  Checker(arguments, checks, faults).run();
}

Environment argument_variables(const Arguments& arguments, Mode mode) {
  Environment result;
  for (const SettingRow& row : settings::settings_table()) {
    const Node& value = arguments.at(std::string(row.key));
    if (row.exported == Export::when_true && python::is_true(value) &&
        (mode != Mode::plain || row != "use_parallelism_config"_key)) {
      result[std::string(row.environment)] = row.format == TextFormat::digit ? "1" : "true";
    }
    if (row.environment.empty() || !is_written(row, arguments, mode)) {
      continue;
    }
    const bool when_given = row.exported == Export::given && row.section != Section::parallelism;
    if (!when_given || value.kind != Node::Kind::null) {
      result[std::string(row.environment)] = formatted(row.format, python::str(value));
    }
  }
  if (mode == Mode::fsdp) {
    result[kUseFsdpVariable] = "true";
  } else if (mode == Mode::deepspeed) {
    result[kUseDeepSpeedVariable] = "true";
  } else if (mode == Mode::plain) {
    result[kUseCpuVariable] =
        python::is_true(arguments.at("cpu")) ? "True" : python::str(arguments.at("use_cpu"));
  }
  if (lower(arguments.at("mixed_precision").text) == "fp8") {
    add_fp8_variables(arguments, result);
  }
  if (const std::string& ids = arguments.at("gpu_ids").text; ids != "all") {
    result["CUDA_VISIBLE_DEVICES"] = ids;
  }
  return result;
}

}  // namespace acc::launcher::accelerate_cli
