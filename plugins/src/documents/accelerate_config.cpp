// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/accelerate_config.hpp"

#include "acc/settings/setting_rows.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace acc::documents {

using settings::operator""_key;
namespace {

// Reading of Accelerate's configuration file. Every key is looked up in the settings table. A key
// that the table does not have is one of Accelerate's structure (distributed_type, the blocks), an
// older name of a setting, a feature that acclaunch does not have, or a mistake.

using namespace std::string_view_literals;

constexpr std::array kModes = {"NO"sv, "MULTI_CPU"sv, "MULTI_GPU"sv, "FSDP"sv, "DEEPSPEED"sv};
constexpr std::array kOtherModes = {"MULTI_NPU"sv, "MULTI_MLU"sv,  "MULTI_SDAA"sv,   "MULTI_MUSA"sv,
                                    "MULTI_XPU"sv, "MULTI_HPU"sv,  "MULTI_NEURON"sv, "XLA"sv,
                                    "TPU"sv,       "MEGATRON_LM"sv};
constexpr std::array kConfigBlocks = [] {
  using enum settings::Section;
  return std::array{settings::block_of(fsdp),          settings::block_of(deepspeed),
                    settings::block_of(dynamo),        settings::block_of(parallelism),
                    std::string_view("mpirun_config"), settings::block_of(fp8)};
}();

/// A key of Accelerate for a feature that acclaunch does not have. Accepted with an empty value
/// (null, false, empty text), because `accelerate config` writes some of these keys into every
/// file.
struct UnsupportedKey {
  std::string_view keys;        ///< joined by `|`; a trailing `*` matches any text
  std::string_view what;        ///< feature and verb, for the message
  bool is_accelerates = false;  ///< Accelerate 1.15 accepts the key in a file for LOCAL_MACHINE
};
constexpr std::array kUnsupportedKeys = {
    UnsupportedKey{"tpu_*|command_file|commands", "TPUs are", true},
    UnsupportedKey{"megatron_lm_*", "Megatron-LM is", true},
    UnsupportedKey{"ipex_config", "Intel's extension is"},
    UnsupportedKey{"ec2_instance_type|iam_role_name|image_uri|profile|region|base_job_name|"
                   "pytorch_version|transformers_version|py_version|sagemaker_*|additional_args",
                   "SageMaker is"},
};

const UnsupportedKey* find_unsupported(std::string_view key) {
  const auto* found = std::ranges::find_if(kUnsupportedKeys, [&](const UnsupportedKey& entry) {
    const auto names = split(entry.keys, '|');
    return std::ranges::any_of(names, [&](auto each) { return settings::matches(key, each); });
  });
  return found == kUnsupportedKeys.end() ? nullptr : found;
}

/// Returns the place where keys of a section belong, for a message.
std::string place_of(settings::Section section) {
  return section == settings::Section::zero ? "the file that deepspeed_config_file names"
                                            : std::string(settings::block_of(section));
}

bool contains(const auto& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// True if the setting's flag takes several words joined by commas, so that the file may hold a
/// list.
bool takes_list(const settings::SettingRow& row) {
  return row.type == settings::Type::list || row.type == settings::Type::text;
}

/// True for a key that Accelerate writes and does not read.
bool is_hidden(std::string_view key) {
  const settings::SettingRow* row = settings::find_setting(key);
  return row != nullptr && row->key == key && row->hidden_from_accelerate;
}

/// True for a setting that Accelerate does not have: its value is checked also where those of
/// Accelerate are left to the program, and it has no `auto`.
bool is_ours(const settings::SettingRow& row) {
  return std::ranges::find(settings::kOfEveryFrontEnd, settings::SettingKey(row)) !=
         settings::kOfEveryFrontEnd.end();
}

/// Returns the text of a scalar, or the items of a list joined by commas as on the command line.
/// YAML reads a plain `no` as false; for a choice that has the value `no` it is turned back.
std::string value_text(const Node& node, const settings::SettingRow& row) {
  if (node.kind == Node::Kind::boolean && row.type == settings::Type::choice) {
    return node.text == "false" ? "no" : node.text;
  }
  if (node.kind != Node::Kind::list) {
    return node.text;
  }
  std::string text;
  for (const Node& item : node.items) {
    text += (text.empty() ? "" : ",") + item.text;
  }
  return text;
}

/// Reads one file into settings. Used once.
class AccelerateConfigImporter {
 public:
  AccelerateConfigImporter(settings::Settings& settings, const AccelerateConfigRules& rules,
                           settings::Faults& faults)
      : settings_(settings), rules_(rules), faults_(faults) {}

  AccelerateConfig read(const Document& document) {
    for (const auto& [key, node] : document.root.entries) {
      read_top(key, node);
    }
    read_mode(document);
    read_old_keys(document.root);
    if (settings_.given("mixed_precision"_key)) {
      result_.deepspeed_fields.emplace_back("mixed_precision");
    }
    return std::move(result_);
  }

 private:
  /// Reads one top-level entry. The order of the cases matters: a key may be a setting and still
  /// have a special meaning or none.
  void read_top(const std::string& key, const Node& node) {
    if (key == "compute_environment") {
      read_compute_environment(node);
    } else if (key == "distributed_type" || key == "fp16" || key == "dynamo_backend" ||
               key == "main_training_function" || (is_hidden(key) && !rules_.reads_hidden_keys)) {
      return;  // read_mode and read_old_keys read the first four; the others have no effect
    } else if (const UnsupportedKey* other = find_unsupported(key);
               other != nullptr && (rules_.checks_values || other->is_accelerates)) {
      refuse_unless_empty(key, node, *other);
    } else if (contains(kConfigBlocks, key)) {
      read_block(key, node);
    } else if (const settings::SettingRow* row = settings::find_setting(key);
               row != nullptr && settings::is_top_level(*row)) {
      set(*row, node);
    } else {
      unknown_top(key, node);
    }
  }

  void read_compute_environment(const Node& node) {
    const bool is_unset = node.is_empty() && rules_.checks_values;
    if (!is_unset && node.text != "LOCAL_MACHINE") {
      faults_.add(node.where + ": compute_environment " + node.text +
                      " is not supported; acclaunch runs on LOCAL_MACHINE",
                  Errc::not_supported);
    }
  }

  void read_mode(const Document& document) {
    const Node* node = document.root.find("distributed_type");
    if (node == nullptr) {
      faults_.add(document.path.string() +
                  ": distributed_type is missing; it must be NO, MULTI_CPU, MULTI_GPU, FSDP or "
                  "DEEPSPEED");
      return;
    }
    // A plain NO is the boolean false in YAML. Accelerate treats it, and any other value that is
    // not a string, as NO.
    const bool bare_no = rules_.checks_values
                             ? node->kind == Node::Kind::boolean && node->text == "false"
                             : node->kind != Node::Kind::string;
    const std::string name = bare_no ? "NO" : rules_.checks_values ? upper(node->text) : node->text;
    if (contains(kModes, name)) {
      result_.distributed_type = name;
      result_.distributed_type_where = node->where;
    } else if (contains(kOtherModes, name)) {
      faults_.add(
          node->where + ": distributed_type " + name +
              " is not supported; acclaunch supports NO, MULTI_CPU, MULTI_GPU, FSDP and DEEPSPEED",
          Errc::not_supported);
    } else {
      faults_.add(node->where +
                  ": distributed_type must be NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED, got \"" +
                  node->text + "\"" + settings::did_you_mean(name, kModes));
    }
  }

  void refuse_unless_empty(const std::string& key, const Node& node, const UnsupportedKey& other) {
    const bool no = node.kind == Node::Kind::boolean && node.text == "false";
    const bool blank = node.kind == Node::Kind::string && node.text.empty();
    if (!node.is_empty() && !no && !blank) {
      faults_.add(node.where + ": " + key + ": " + std::string(other.what) +
                      " not supported; remove the key",
                  Errc::not_supported);
    }
  }

  /// Reads top-level keys of earlier versions of Accelerate.
  void read_old_keys(const Node& root) {
    const Node* fp16 = root.find("fp16");
    if (fp16 != nullptr && fp16->text == "true" && root.find("mixed_precision") == nullptr) {
      set(*settings::find_setting("mixed_precision"_key.name()), Node{.kind = Node::Kind::string,
                                                                      .text = "fp16",
                                                                      .items = {},
                                                                      .entries = {},
                                                                      .where = fp16->where});
      renamed(*fp16, "fp16: true", "mixed_precision: fp16");
    }
    const Node* dynamo = root.find("dynamo_backend");
    if (dynamo != nullptr && root.find("dynamo_config") == nullptr) {
      set(*settings::find_setting("dynamo_backend"_key.name()), *dynamo);
    }
  }

  /// Adds a fault for an unknown top-level key. Says where the key belongs if it is a setting of a
  /// block or only a flag; else suggests a similar key.
  void unknown_top(const std::string& key, const Node& node) {
    std::vector<std::string_view> known(kConfigBlocks.begin(), kConfigBlocks.end());
    for (const settings::SettingRow& row : settings::settings_table()) {
      if (settings::is_top_level(row)) {
        known.push_back(row.key);
      }
    }
    known.insert(known.end(), {"distributed_type", "compute_environment"});
    const settings::SettingRow* row = settings::find_setting(key);
    const bool misplaced = row != nullptr && row->section != settings::Section::launch;
    faults_.add(node.where + ": unknown key \"" + key + "\"" +
                (misplaced        ? "; it belongs in " + place_of(row->section)
                 : row != nullptr ? "; only the flag --" + key + " exists"
                                  : settings::did_you_mean(key, known)));
  }

  void read_block(const std::string& name, const Node& block) {
    if (block.is_empty()) {
      return;
    }
    if (block.kind != Node::Kind::map) {
      if (rules_.checks_values) {
        faults_.add(block.where + ": " + name + " must hold lines of \"key: value\"");
      }
      return;
    }
    result_.has_parallelism_config |= name == "parallelism_config";
    for (const auto& [key, node] : block.entries) {
      read_inner(name, key, node);
    }
  }

  /// Reads one entry of a block.
  void read_inner(const std::string& block, const std::string& key, const Node& node) {
    if (block == settings::block_of(settings::Section::deepspeed)) {
      result_.deepspeed_fields.push_back(key);
    }
    if (const settings::SettingRow* row = inner_row(block, key, rules_.checks_inner_keys)) {
      if (row->key != key && prefix_of(block) + key != row->key) {
        renamed(node, key, std::string(row->key));
      }
      check_given_once(*row, key, node);
      set(*row, node);
    } else if (rules_.checks_inner_keys) {
      unknown_inner(block, key, node);
    }
  }

  /// Refuses a setting that the file gives twice with different values, under two of its names:
  /// with and without the prefix, or under an old name.
  void check_given_once(const settings::SettingRow& row, const std::string& key, const Node& node) {
    const auto [first, is_new] = found_.try_emplace(row.key, key, &node);
    const auto& [other_key, other] = first->second;
    if (!is_new && rules_.checks_inner_keys && value_text(node, row) != value_text(*other, row)) {
      faults_.add(node.where + ": " + key + " contradicts " + other->where + ": " + other_key +
                  ", which is the same setting; remove one of them");
    }
  }

  static std::string prefix_of(const std::string& block) {
    if (block == "fsdp_config")
      return "fsdp_";
    if (block == "dynamo_config")
      return "dynamo_";
    if (block == "fp8_config")
      return "fp8_";
    if (block == "parallelism_config")
      return "parallelism_config_";
    return "";
  }

  /// True if the setting may be given in this block.
  static bool belongs(const settings::SettingRow& row, const std::string& block) {
    return row.in_file && settings::block_of(row) == block;
  }

  /// Returns the row of a key inside a block, or nullptr. The key may lack the block's prefix.
  /// old_names: accept SettingRow::old_key.
  static const settings::SettingRow* inner_row(const std::string& block, const std::string& key,
                                               bool old_names) {
    for (const std::string& candidate : {key, prefix_of(block) + key}) {
      const auto table = settings::settings_table();
      const auto now = std::ranges::find(table, candidate, &settings::SettingRow::old_key);
      const settings::SettingRow* row =
          old_names && now != table.end() ? &*now : settings::find_setting(candidate);
      if (row != nullptr && belongs(*row, block)) {
        return row;
      }
    }
    return nullptr;
  }

  void unknown_inner(const std::string& block, const std::string& key, const Node& node) {
    std::vector<std::string_view> known;
    for (const settings::SettingRow& row : settings::settings_table()) {
      if (belongs(row, block)) {
        known.push_back(row.key);
      }
    }
    std::string correction = settings::did_you_mean(key, known);
    if (correction.empty()) {
      correction = settings::did_you_mean(prefix_of(block) + key, known);
    }
    faults_.add(node.where + ": unknown key \"" + key + "\" in " + block + correction);
  }

  void renamed(const Node& node, const std::string& old_name, const std::string& name) {
    result_.notices.push_back(node.where + ": " + old_name + " is read as " + name +
                              ", its current name");
  }

  /// Stores a value, unless it is empty or left open. A wrong value is a fault.
  void set(const settings::SettingRow& row, const Node& node) {
    if (node.is_empty()) {
      return;
    }
    const bool is_list = node.kind == Node::Kind::list;
    if (node.kind == Node::Kind::map || (is_list && !takes_list(row))) {
      fault(row, node.where + ": " + std::string(row.key) + " must be " +
                     settings::expected_value(row) + ", got a " + (is_list ? "list" : "block"));
      return;
    }
    const std::string text = value_text(node, row);
    const bool open =
        (row == "num_processes"_key && text == "-1") || (lower(text) == "auto" && !is_ours(row));
    if (open) {  // `accelerate config` writes -1 or "auto" for "decided at launch"
      return;
    }
    try {
      settings_.set(row, text, {settings::Source::Kind::file, node.where});
    } catch (const Error& error) {
      fault(row, error.what());
    }
  }

  void fault(const settings::SettingRow& row, const std::string& sentence) {
    if (rules_.checks_values || is_ours(row)) {
      faults_.add(sentence);
      result_.faulty_keys.emplace(row.key);
    }
  }

  settings::Settings& settings_;
  const AccelerateConfigRules& rules_;
  settings::Faults& faults_;
  AccelerateConfig result_;
  /// Settings found in blocks so far: the key as written in the file, and the value.
  std::map<std::string_view, std::pair<std::string, const Node*>> found_;
};

}  // namespace

AccelerateConfig read_accelerate_config(const Document& document, settings::Settings& settings,
                                        const AccelerateConfigRules& rules,
                                        settings::Faults& faults) {
  return AccelerateConfigImporter(settings, rules, faults).read(document);
}

AccelerateConfig apply_accelerate_config(const Document& document, settings::Settings& settings) {
  settings::Faults faults;
  AccelerateConfig config = read_accelerate_config(document, settings, {}, faults);
  faults.raise();
  return config;
}

}  // namespace acc::documents
