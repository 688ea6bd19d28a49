// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/deepspeed_json.hpp"

#include "acc/settings/faults.hpp"
#include "acc/settings/setting_rows.hpp"
#include "documents/deepspeed_blocks.hpp"
#include "documents/deepspeed_schema.hpp"

#include <algorithm>

namespace acc::documents {

using settings::operator""_key;
namespace {

// Reading of DeepSpeed's JSON file after flags and YAML file. deepspeed_schema.cpp knows the keys.
// A key with a row in the settings table sets that setting; a key that only a Python program can
// use is checked and listed; an unknown or removed key is a fault. `"auto"` means that Accelerate's
// plugin or the program fills in the value.

using namespace std::string_view_literals;
using deepspeed::Auto;
using Key = DeepSpeedFile::Key;

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kStagePath = "zero_optimization.stage";

const settings::SettingRow& stage_row() {
  return *deepspeed::find_key(kStagePath);
}

bool same_value(const settings::SettingRow& row, std::string_view a, std::string_view b) {
  switch (row.type) {
    case settings::Type::boolean: return settings::parse_boolean(a) == settings::parse_boolean(b);
    case settings::Type::integer:
    case settings::Type::count: return settings::parse_count(a) == settings::parse_count(b);
    case settings::Type::real: return settings::parse_real(a) == settings::parse_real(b);
    default: return lower(a) == lower(b);
  }
}

/// Returns the product of two positive numbers, or INT64_MAX if it would overflow.
std::int64_t bounded_product(std::int64_t a, std::int64_t b) {
  return a > INT64_MAX / b ? INT64_MAX : a * b;
}

std::string joined(const std::vector<Key>& keys) {
  std::string text;
  for (const Key& key : keys) {
    text += (text.empty() ? "" : ", ") + key.path;
  }
  return text;
}

/// Reads one file into settings. Used once.
class DeepSpeedJsonImporter {
 public:
  DeepSpeedJsonImporter(const Document& document, int world_size, settings::Settings& settings)
      : document_(document), world_size_(world_size), settings_(settings) {}

  DeepSpeedFile read() {
    refuse_yaml_settings();
    if (document_.root.find("zero_optimization") == nullptr) {
      faults_.add(document_.path.string() + ": zero_optimization is missing");
    }
    read_block("", document_.root);
    read_missing_stage();
    read_precision();
    read_batch_sizes();
    check_gradient_norm();
    faults_.raise();
    pass_on_unsupported();
    report();
    return std::move(result_);
  }

 private:
  /// Refuses settings of the YAML file that the JSON file must hold: with both, Accelerate's plugin
  /// raises an error in the program.
  void refuse_yaml_settings() {
    for (const settings::SettingRow& row : settings_.table()) {
      const bool of_file = !row.json.empty() || row == "mixed_precision"_key;
      const settings::Source& source = settings_.source(row);
      if (of_file && source.kind == settings::Source::Kind::file) {
        const std::string path =
            row.json.empty() ? "fp16.enabled or bf16.enabled" : std::string(row.json);
        faults_.add(source.where + ": " + std::string(row.key) + " " + settings_.text(row) +
                    " must not be given together with deepspeed_config_file" +
                    place_of_file_name() + "; move it to " + document_.path.string() + " as " +
                    path);
      }
    }
  }

  [[nodiscard]] std::string place_of_file_name() const {
    const settings::Source& named = settings_.source("deepspeed_config_file"_key);
    return named.kind == settings::Source::Kind::file ? " (" + named.where + ")" : "";
  }

  void read_block(const std::string& block, const Node& node) {
    if (node.is_empty()) {
      return;
    }
    if (node.kind != Node::Kind::map) {
      faults_.add(node.where + ": " + block + " must be an object, { \"key\": value }");
      return;
    }
    for (const auto& [key, value] : node.entries) {
      const std::string name = block.empty() && key == "bfloat16" ? "bf16" : key;
      read_key(block, name, value);
    }
  }

  /// Reads one entry of a block by what the schema knows about its path.
  void read_key(const std::string& block, const std::string& name, const Node& node) {
    const std::string path = block.empty() ? name : block + "." + name;
    if (const settings::SettingRow* row = deepspeed::find_key(path)) {
      read_value(*row, path, node);
    } else if (deepspeed::is_block(path)) {
      read_block(path, node);
    } else if (path == "optimizer" || path == "scheduler") {
      read_typed_block(path, node);
    } else if (deepspeed::is_opaque(path)) {
      leave_to_program(path, node);
    } else if (const deepspeed::Renamed* renamed = deepspeed::find_renamed(path)) {
      read_old_name(*renamed, node);
    } else if (deepspeed::is_removed(path)) {
      faults_.add(node.where + ": " + name + " was removed from DeepSpeed; remove the key");
    } else {
      faults_.add(node.where + ": unknown key \"" + name + "\"" +
                  (block.empty() ? "" : " in " + block) +
                  settings::did_you_mean(name, deepspeed::names_in(block)));
    }
  }

  void read_typed_block(const std::string& name, const Node& node) {
    if (node.is_empty()) {
      return;
    }
    const auto read = name == "optimizer" ? deepspeed::read_optimizer : deepspeed::read_scheduler;
    for (const auto& [path, text, where] : read(node, faults_, result_.filled_by_program)) {
      set(*deepspeed::find_key(path), path, text, where);
    }
    leave_to_program(name, node);
  }

  /// Reads a key under its old name. An old switch such as cpu_offload becomes a device.
  void read_old_name(const deepspeed::Renamed& renamed, const Node& node) {
    Node value = node;
    if (renamed.is_switch && settings::parse_boolean(node.text)) {
      value.text = *settings::parse_boolean(node.text) ? "cpu" : "none";
    }
    read_value(*deepspeed::find_key(renamed.path), std::string(renamed.path), value);
    result_.notices.push_back(node.where + ": " + std::string(renamed.old_path) + " is read as " +
                              std::string(renamed.path) + ", its current name");
  }

  /// Reads a value: stores a setting, or checks a key that is left to the program. `*.enabled`
  /// needs no entry in that list, because read_precision handles it.
  void read_value(const settings::SettingRow& row, const std::string& path, const Node& node) {
    if (node.is_empty()) {
      return;
    }
    if (node.text == kAuto) {
      read_auto(path, node);
    } else if (!node.is_scalar()) {
      faults_.add(node.where + ": " + path + " must be " + settings::expected_value(row));
    } else if (has_valid_value(row, path, node)) {
      if (!deepspeed::is_left_to_program(row)) {
        set(row, path, node.text, node.where);
      } else if (!path.ends_with(".enabled") && !same_value(row, node.text, row.fallback)) {
        leave_to_program(path, node);
      }
    }
  }

  /// Checks a value. The message uses the path in the file instead of the setting's key.
  bool has_valid_value(settings::SettingRow row, const std::string& path, const Node& node) {
    row.key = path;
    try {
      settings::check_value(row, node.text, {settings::Source::Kind::deepspeed_file, node.where});
      return true;
    } catch (const Error& error) {
      faults_.add(error.what());
      return false;
    }
  }

  /// Handles "auto". A setting keeps its value from flags or the YAML file; gradient_clipping gets
  /// Accelerate's default 1.0.
  void read_auto(const std::string& path, const Node& node) {
    switch (deepspeed::filled_by(path)) {
      case Auto::nobody:
        faults_.add(node.where + ": " + path +
                    " cannot be \"auto\", because neither Accelerate nor the program fills it in; "
                    "give a value or remove the key");
        break;
      case Auto::program: result_.filled_by_program.push_back({path, node.text, node.where}); break;
      case Auto::settings:
        if (path == "gradient_clipping" && !settings_.given("gradient_clipping"_key)) {
          settings_.set("gradient_clipping"_key, "1.0",
                        {settings::Source::Kind::deepspeed_file, node.where});
        }
        break;
    }
  }

  /// Lists a key that only a program can use, unless its value has no effect. If libacc_runtime
  /// must refuse the feature, the key is listed for it too.
  void leave_to_program(const std::string& path, const Node& node) {
    const bool off = node.kind == Node::Kind::boolean && node.text == "false";
    const bool has_effect = deepspeed::find_key(path) != nullptr || (!node.is_empty() && !off);
    if (has_effect) {
      result_.left_to_program.push_back({path, node.text, node.where});
    }
    if (has_effect && deepspeed::is_refused_by_runtime(path) && !is_off(path, node)) {
      unsupported_.push_back({path, node.text, node.where});
    }
  }

  /// True if the feature is switched off: a block with `enabled: false`, or a size of one rank.
  static bool is_off(const std::string& path, const Node& node) {
    const Node* enabled = node.find("enabled");
    return (path == "sequence_parallel_size" && node.text == "1") ||
           (enabled != nullptr && settings::parse_boolean(enabled->text) == false);
  }

  /// Passes the unsupported features on to the runtime, which refuses them. The launcher cannot do
  /// that: the program may be a Python program that uses DeepSpeed itself.
  void pass_on_unsupported() {
    std::string text;
    for (const Key& key : unsupported_) {
      text += (text.empty() ? "" : "; ") + key.path + (key.text.empty() ? "" : " ") + key.text;
    }
    if (!text.empty()) {
      settings_.set("deepspeed_unsupported"_key, text,
                    {settings::Source::Kind::deepspeed_file, document_.path.string()});
    }
  }

  /// Stores a value, or adds a fault if a flag gave another one. A value of the YAML file cannot be
  /// there: refuse_yaml_settings has refused it.
  void set(const settings::SettingRow& row, const std::string& path, const std::string& text,
           const std::string& where) {
    const settings::Source before = settings_.source(row);
    if (before.kind != settings::Source::Kind::flag) {
      settings_.set(row, text, {settings::Source::Kind::deepspeed_file, where});
    } else if (!same_value(row, text, settings_.text(row))) {
      faults_.add(where + ": " + path + " " + text + " contradicts " + std::string(row.key) + " " +
                  settings_.text(row) + " (" + before.where +
                  "); keep one of them, or write \"auto\" here");
    }
  }

  /// Sets stage 0 for a zero_optimization block without a stage, as DeepSpeed does.
  void read_missing_stage() {
    const Node* block = document_.root.find("zero_optimization");
    if (block != nullptr && block->find("stage") == nullptr) {
      set(stage_row(), std::string(kStagePath) + " (not given)", "0", block->where);
    }
  }

  /// Sets mixed_precision from fp16.enabled and bf16.enabled.
  void read_precision() {
    const Node* fp16 = enabled("fp16");
    const Node* bf16 = enabled("bf16") != nullptr ? enabled("bf16") : enabled("bfloat16");
    if (is_set_to(fp16, true) && is_set_to(bf16, true)) {
      faults_.add(bf16->where + ": fp16 and bf16 cannot both be enabled");
      return;
    }
    const std::string asked =
        settings_.source("mixed_precision"_key).kind == settings::Source::Kind::flag
            ? settings_.choice("mixed_precision"_key)
            : "";
    // Accelerate runs fp8 on top of bf16, so the two do not contradict each other.
    const bool fp8_on_bf16 = asked == "fp8" && is_set_to(bf16, true);
    if (is_set_to(fp16, true)) {
      set_precision("fp16", *fp16);
    } else if (is_set_to(bf16, true) && !fp8_on_bf16) {
      set_precision("bf16", *bf16);
    } else if (is_set_to(fp16, false) && asked == "fp16") {
      contradict_precision("fp16", *fp16);
    } else if (is_set_to(bf16, false) && (asked == "bf16" || asked == "fp8")) {
      contradict_precision("bf16", *bf16);
    }
  }

  [[nodiscard]] const Node* enabled(std::string_view block) const {
    const Node* node = document_.root.find(block);
    return node == nullptr ? nullptr : node->find("enabled");
  }

  static bool is_set_to(const Node* enabled, bool value) {
    return enabled != nullptr && settings::parse_boolean(enabled->text) == value;
  }

  void set_precision(const std::string& name, const Node& enabled) {
    set(*settings::find_setting("mixed_precision"_key.name()), name + ".enabled:", name,
        enabled.where);
  }

  void contradict_precision(const std::string& name, const Node& enabled) {
    faults_.add(enabled.where + ": " + name + ".enabled false contradicts mixed_precision " +
                settings_.text("mixed_precision"_key) + " (" +
                settings_.source("mixed_precision"_key).where +
                "); keep one of them, or write \"auto\" here");
  }

  /// Returns the value of a batch size, or nullopt if it is "auto", not given or wrong.
  [[nodiscard]] std::optional<std::int64_t> batch_size(std::string_view key) const {
    const Node* node = document_.root.find(key);
    const auto size = node == nullptr ? std::nullopt : settings::parse_count(node->text);
    return size && *size > 0 ? size : std::nullopt;
  }

  /// Checks that total = micro x accumulation steps x ranks, and derives the accumulation steps if
  /// they are not given.
  void read_batch_sizes() {
    const auto total = batch_size("train_batch_size");
    const auto micro = batch_size("train_micro_batch_size_per_gpu");
    const Node* open = document_.root.find("train_micro_batch_size_per_gpu");
    if (!total && !micro && (open == nullptr || open->is_empty())) {
      faults_.add(document_.path.string() +
                  ": train_batch_size or train_micro_batch_size_per_gpu is missing; \"auto\" for "
                  "the second leaves it to the program");
    }
    if (!total || world_size_ == 0) {
      return;
    }
    const bool knows_steps = settings_.given("gradient_accumulation_steps"_key);
    const std::int64_t steps = settings_.integer("gradient_accumulation_steps"_key);
    const std::int64_t divisor =
        bounded_product(bounded_product(micro.value_or(1), knows_steps ? steps : 1), world_size_);
    const bool fits = micro && knows_steps ? *total == divisor : *total % divisor == 0;
    if (!fits) {
      faults_.add(batch_size_fault(*total, micro, knows_steps ? steps : 0, divisor));
    } else if (micro && !knows_steps) {
      settings_.set("gradient_accumulation_steps"_key, std::to_string(*total / divisor),
                    {settings::Source::Kind::deepspeed_file, place_of_total()});
    }
  }

  [[nodiscard]] std::string place_of_total() const {
    return document_.root.find("train_batch_size")->where;
  }

  /// Returns the message for a total batch size that does not fit. steps: 0 if not given.
  [[nodiscard]] std::string batch_size_fault(std::int64_t total, std::optional<std::int64_t> micro,
                                             std::int64_t steps, std::int64_t divisor) const {
    return place_of_total() + ": train_batch_size " + std::to_string(total) + " must be " +
           (micro && steps > 0 ? "" : "a multiple of ") +
           (micro ? std::to_string(*micro) + " (train_micro_batch_size_per_gpu) x " : "") +
           (steps > 0 ? std::to_string(steps) + " accumulation steps x " : "") +
           std::to_string(world_size_) + " processes" +
           (micro || steps > 0 ? " = " + std::to_string(divisor) : "");
  }

  /// DeepSpeed accepts compute_grad_norm false with stages 1 and 2 only.
  void check_gradient_norm() {
    const Node* block = document_.root.find("zero_optimization");
    const Node* norm = block == nullptr ? nullptr : block->find("compute_grad_norm");
    const std::int64_t stage = settings_.integer(stage_row());
    if (norm != nullptr && settings::parse_boolean(norm->text) == false && stage != 1 &&
        stage != 2) {
      faults_.add(norm->where + ": compute_grad_norm false needs stage 1 or 2, but the stage is " +
                  std::to_string(stage) + " (" + settings::describe(settings_.source(stage_row())) +
                  ")");
    }
  }

  /// Adds the notices about keys that only the program uses.
  void report() {
    const std::string file = document_.path.string();
    if (!result_.left_to_program.empty()) {
      result_.notices.push_back(file + ": left to the program: " + joined(result_.left_to_program));
    }
    if (!result_.filled_by_program.empty()) {
      result_.notices.push_back(
          file + ": \"auto\", filled in by the program: " + joined(result_.filled_by_program));
    }
  }

  const Document& document_;
  int world_size_;
  settings::Settings& settings_;
  settings::Faults faults_;
  DeepSpeedFile result_;
  std::vector<Key> unsupported_;
};

}  // namespace

DeepSpeedFile apply_deepspeed_json(const Document& document, int world_size,
                                   settings::Settings& settings) {
  // Work on a copy, so that the caller's settings stay unchanged if the file has faults.
  settings::Settings result = settings;
  DeepSpeedFile file = DeepSpeedJsonImporter(document, world_size, result).read();
  settings = std::move(result);
  return file;
}

}  // namespace acc::documents
