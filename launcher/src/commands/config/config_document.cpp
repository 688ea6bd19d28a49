// SPDX-License-Identifier: Apache-2.0
// Builds configuration files that equal those of Accelerate 1.15: the same keys, values and
// defaults as accelerate/commands/config writes.

#include "acc/settings/settings.hpp"
#include "commands/config/questionnaire.hpp"

#include <algorithm>

namespace acc::launcher::commands {
namespace {

using documents::Node;

/// Sets `key`, unless the map already contains it.
void set_default(Node& map, std::string_view key, Node value) {
  if (map.find(key) == nullptr) {
    map.set(key, std::move(value));
  }
}

/// Converts an answer to the YAML type that Accelerate writes for the question.
Node value_of(const Step& step, const std::string& value) {
  switch (*step.kind) {
    case QuestionKind::yes_no: return Node::boolean(value == "true");
    case QuestionKind::integer:
    case QuestionKind::real: return Node::number(value);
    case QuestionKind::menu: {
      const bool is_number =
          std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
      return is_number ? Node::number(value) : Node::string(value);
    }
    case QuestionKind::text: break;
  }
  return Node::string(value);
}

/// Returns the block `name` of the file, and adds it if it does not exist.
Node& place(Node& config, std::string_view name) {
  if (name == kTop) {
    return config;
  }
  const Node* found = config.find(name);
  return config.set(name, found == nullptr ? Node::map() : *found);
}

std::string without_tilde(const std::string& path, const std::string& home) {
  return path == "~" || path.starts_with("~/") ? home + path.substr(1) : path;
}

/// Adds the defaults of Accelerate's class ClusterConfig (config_args.py) that are neither None nor
/// empty; Accelerate writes only those.
void add_defaults(Node& config) {
  for (const auto& [key, value] : default_answers()) {
    const Step& step = *std::ranges::find(questionnaire_steps(), key, &Step::key);
    set_default(config, key, value_of(step, std::string(value)));
  }
  set_default(config, "downcast_bf16", Node::boolean(false));
  set_default(config, "main_training_function", Node::string("main"));
  set_default(config, "tpu_use_cluster", Node::boolean(false));
  set_default(config, "tpu_use_sudo", Node::boolean(false));
}

/// Adds keys that follow from answers to other questions.
void add_consequences(const Answers& answers, Node& config) {
  const Node derived = derived_fsdp_keys(answers);
  for (const auto& [key, value] : derived.entries) {
    set_default(place(config, "fsdp_config"), key, value);
  }
  if (answers.is("fp8_backend", "TE")) {
    Node overrides;
    overrides.kind = Node::Kind::list;
    for (const char* product : {"fp8_override_fprop", "fp8_override_dgrad", "fp8_override_wgrad"}) {
      overrides.items.push_back(Node::boolean(answers.yes(product)));
    }
    place(config, "fp8_config").set("fp8_override_linear_precision", overrides);
  }
  if (answers.is("distributed_type", "MULTI_CPU")) {
    set_default(config, "use_cpu", Node::boolean(true));
  }
}

bool names_a_choice(std::string_view key) {
  const settings::SettingRow* row = settings::find_setting(key);
  return key == "distributed_type" || (row != nullptr && row->type == settings::Type::choice);
}

/// Restores the word "no" for keys with named values: YAML reads a bare `no` as false.
Node with_no_as_word(const Node& node) {
  const bool bare_no = node.kind == Node::Kind::boolean && node.text == "false";
  return bare_no ? Node::string("no") : node;
}

/// Replaces top-level keys of earlier versions of Accelerate.
void replace_old_keys(Node& config) {
  const Node* fp16 = config.find("fp16");
  if (fp16 != nullptr && fp16->text == "true") {
    set_default(config, "mixed_precision", Node::string("fp16"));
  }
  const Node* backend = config.find("dynamo_backend");
  if (backend != nullptr && lower(backend->text) != "no") {
    set_default(config, "dynamo_config", Node::map({{"dynamo_backend", *backend}}));
  }
  config.remove("fp16");
  config.remove("dynamo_backend");
}

}  // namespace

Node config_document(const Answers& answers, const std::string& home) {
  Node config = Node::map();
  for (const Step& step : questionnaire_steps()) {
    const std::string* value = answers.find(step.key);
    const bool says_something = value != nullptr && !(value->empty() && step.may_be_empty);
    if (!step.block.empty() && says_something) {
      set_default(place(config, step.block), step.key,
                  value_of(step, step.expands_home ? without_tilde(*value, home) : *value));
    }
  }
  add_consequences(answers, config);
  Node empty_list;
  empty_list.kind = Node::Kind::list;
  set_default(config, "distributed_type", Node::string(distributed_type(answers)));
  set_default(config, "downcast_bf16", Node::string("no"));
  set_default(config, "num_processes", Node::number(1));
  set_default(config, "same_network", Node::boolean(true));
  set_default(config, "tpu_env", empty_list);
  add_defaults(config);
  return config;
}

Node default_config_document(const std::string& mixed_precision, int num_gpus) {
  Node config = Node::map();
  set_default(config, "distributed_type", Node::string(num_gpus > 1 ? "MULTI_GPU" : "NO"));
  set_default(config, "mixed_precision", Node::string(mixed_precision));
  set_default(config, "num_processes", Node::number(std::max(num_gpus, 1)));
  set_default(config, "use_cpu", Node::boolean(num_gpus == 0));
  add_defaults(config);
  return config;
}

Node updated_config_document(const documents::Document& document) {
  Node config = Node::map();
  for (const auto& [key, node] : document.root.entries) {
    const bool none =
        node.kind == Node::Kind::null || (node.kind == Node::Kind::map && node.entries.empty());
    if (!none) {
      config.set(key, names_a_choice(key) ? with_no_as_word(node) : node);
    }
  }
  replace_old_keys(config);
  const Node* type = document.root.find("distributed_type");
  set_default(config, "num_processes",
              Node::number(type != nullptr && type->text == "NO" ? 1 : -1));
  add_defaults(config);
  return config;
}

}  // namespace acc::launcher::commands
