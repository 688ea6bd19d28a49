#include "commands/config/config_document.hpp"

#include "acc/plugins/settings.hpp"
#include "commands/config/questions.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

using plugins::Node;

Node scalar(Node::Kind kind, std::string text) {
  return {.kind = kind, .text = std::move(text), .items = {}, .entries = {}, .where = {}};
}
Node word(std::string text) {
  return scalar(Node::Kind::string, std::move(text));
}
Node number(std::int64_t value) {
  return scalar(Node::Kind::number, std::to_string(value));
}
Node truth(bool value) {
  return scalar(Node::Kind::boolean, value ? "true" : "false");
}
Node block() {
  return scalar(Node::Kind::map, {});
}
Node empty_list() {
  return scalar(Node::Kind::list, {});
}

Node* find(Node& map, std::string_view key) {
  const auto found = std::ranges::find(
      map.entries, key, [](const auto& entry) -> std::string_view { return entry.first; });
  return found == map.entries.end() ? nullptr : &found->second;
}

void set_default(Node& map, const std::string& key, Node value) {
  if (find(map, key) == nullptr) {
    map.entries.emplace_back(key, std::move(value));
  }
}

/// The entries of a class of Accelerate 1.15, ClusterConfig, that are neither none nor empty.
void add_defaults(Node& config) {
  set_default(config, "compute_environment", word("LOCAL_MACHINE"));
  set_default(config, "debug", truth(false));
  set_default(config, "downcast_bf16", truth(false));
  set_default(config, "enable_cpu_affinity", truth(false));
  set_default(config, "machine_rank", number(0));
  set_default(config, "main_training_function", word("main"));
  set_default(config, "num_machines", number(1));
  set_default(config, "rdzv_backend", word("static"));
  set_default(config, "same_network", truth(false));
  set_default(config, "tpu_use_cluster", truth(false));
  set_default(config, "tpu_use_sudo", truth(false));
  set_default(config, "use_cpu", truth(false));
}

Node value_of(const Step& step, const std::string& value) {
  switch (step.kind) {
    case QuestionKind::yes_no: return scalar(Node::Kind::boolean, value);
    case QuestionKind::integer:
    case QuestionKind::real: return scalar(Node::Kind::number, value);
    case QuestionKind::menu: {
      const bool is_number = std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
      return is_number ? scalar(Node::Kind::number, value) : word(value);
    }
    case QuestionKind::text: break;
  }
  return word(value);
}

Node& place(Node& config, std::string_view name) {
  if (name == kTop) {
    return config;
  }
  set_default(config, std::string(name), block());
  return *find(config, name);
}

std::string without_tilde(const std::string& path, const std::string& home) {
  return path == "~" || path.starts_with("~/") ? home + path.substr(1) : path;
}

/// Where an answer says more than its own key.
void add_consequences(const Answers& answers, const std::string& home, Node& config) {
  if (const std::string* strategy = answers.find("fsdp_sharding_strategy")) {
    // Accelerate's questionnaire writes the new name alone, which its launcher does not read with
    // FSDP 1; with both the file says the same to either.
    set_default(place(config, "fsdp_config"), "fsdp_reshard_after_forward", word(*strategy));
    if (answers.yes("fsdp_cpu_ram_efficient_loading")) {
      set_default(place(config, "fsdp_config"), "fsdp_sync_module_states", truth(true));
    }
  }
  if (const std::string* file = answers.find("mpirun_hostfile")) {
    *find(place(config, "mpirun_config"), "mpirun_hostfile") = word(without_tilde(*file, home));
  }
  if (answers.is("distributed_type", "MULTI_CPU")) {
    set_default(config, "use_cpu", truth(true));
  }
}

bool names_a_choice(std::string_view key) {
  const plugins::SettingRow* row = plugins::find_setting(key);
  return key == "distributed_type" || (row != nullptr && row->type == plugins::Type::choice);
}

/// A bare `no` where a word is expected.
Node with_no_as_word(const Node& node) {
  const bool bare_no = node.kind == Node::Kind::boolean && node.text == "false";
  return bare_no ? word("no") : node;
}

/// Top-level keys of earlier versions.
void replace_old_keys(Node& config) {
  if (const Node* fp16 = find(config, "fp16")) {
    if (fp16->text == "true") {
      set_default(config, "mixed_precision", word("fp16"));
    }
  }
  if (const Node* backend = find(config, "dynamo_backend"); backend != nullptr) {
    const Node value = *backend;
    if (plugins::lower(value.text) != "no") {
      set_default(config, "dynamo_config", block());
      set_default(*find(config, "dynamo_config"), "dynamo_backend", value);
    }
  }
  std::erase_if(config.entries, [](const auto& entry) {
    return entry.first == "fp16" || entry.first == "dynamo_backend";
  });
}

}  // namespace

Node config_document(const Answers& answers, const std::string& home) {
  Node config = block();
  for (const Step& step : questionnaire_steps()) {
    const std::string* value = answers.find(step.key);
    const bool says_something = value != nullptr && !(value->empty() && step.may_be_empty);
    if (!step.block.empty() && says_something) {
      set_default(place(config, step.block), std::string(step.key), value_of(step, *value));
    }
  }
  add_consequences(answers, home, config);
  set_default(config, "distributed_type", word(distributed_type(answers)));
  set_default(config, "downcast_bf16", word("no"));
  set_default(config, "num_processes", number(1));
  set_default(config, "same_network", truth(true));
  set_default(config, "tpu_env", empty_list());
  add_defaults(config);
  return config;
}

Node default_config_document(const std::string& mixed_precision, int num_gpus) {
  Node config = block();
  set_default(config, "distributed_type", word(num_gpus > 1 ? "MULTI_GPU" : "NO"));
  set_default(config, "mixed_precision", word(mixed_precision));
  set_default(config, "num_processes", number(std::max(num_gpus, 1)));
  set_default(config, "use_cpu", truth(num_gpus == 0));
  add_defaults(config);
  return config;
}

Node updated_config_document(const plugins::Document& document) {
  Node config = block();
  for (const auto& [key, node] : document.root.entries) {
    const bool none = node.kind == Node::Kind::null ||
                      (node.kind == Node::Kind::map && node.entries.empty());
    if (!none) {
      config.entries.emplace_back(key, names_a_choice(key) ? with_no_as_word(node) : node);
    }
  }
  replace_old_keys(config);
  const Node* type = document.root.find("distributed_type");
  set_default(config, "num_processes", number(type != nullptr && type->text == "NO" ? 1 : -1));
  add_defaults(config);
  return config;
}

}  // namespace acc::launcher
