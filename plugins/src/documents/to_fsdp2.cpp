// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/documents/convert_config.hpp"
#include "acc/settings/setting_rows.hpp"
#include "documents/conversion.hpp"

namespace acc::documents {

namespace {

// The same translation as `accelerate to-fsdp2` of Accelerate 1.15, key by key.

/// True for a key of Accelerate's FSDP 1 that FSDP 2 does not have.
bool is_dropped(std::string_view key) {
  const settings::SettingRow* row = settings::find_setting(key);
  return row != nullptr && row->key == key && !row->environment.empty() && is_lost_in_fsdp(2, *row);
}

/// Returns the value of FSDP 2's setting for a strategy of FSDP 1: true if the strategy
/// reshards. A boolean stays.
Node reshard_value(const std::string& key, const Node& node) {
  if (node.kind == Node::Kind::boolean) {
    return node;
  }
  settings::Settings settings;
  const settings::SettingKey old = strategy_key(ConfigForm::fsdp);
  settings.set(old, node.text, {settings::Source::Kind::file, node.where});
  const std::string strategy = settings.choice(old);
  Node value = Node::boolean(strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD");
  value.where = node.where + ": " + key;
  return value;
}

void convert_entry(const std::string& key, const Node& node, Conversion& result, Node& block) {
  if (is_dropped(key)) {
    result.remarks.push_back(node.where + ": " + key + " is left out: FSDP 2 has no such setting" +
                             (key == "fsdp_forward_prefetch" ? " yet" : " any more"));
  } else if (const std::string_view now = strategy_key(ConfigForm::fsdp2).name();
             key == now || key == strategy_key(ConfigForm::fsdp).name()) {
    block.set(now, reshard_value(key, node));
    if (upper(node.text).starts_with("HYBRID")) {
      result.remarks.push_back(node.where + ": " + key + " " + node.text +
                               " shards within groups; with FSDP 2 the groups are set in "
                               "parallelism_config, which convert-config --to fsdp2 writes");
    }
  } else {
    block.set(key, node);
  }
}

}  // namespace

Conversion to_fsdp2(const Document& document) {
  Conversion result{document.root, std::nullopt, {}};
  const Node* old = document.root.find("fsdp_config");
  if (document.root.is_empty()) {
    throw Error(Errc::config, document.path.string() + ": the file is empty");
  }
  if (old == nullptr || old->is_empty()) {
    result.remarks.push_back(document.path.string() + ": has no FSDP settings and is not changed");
    return result;
  }
  const Node* version = old->find("fsdp_version");
  if (version != nullptr && version->text == "2") {
    result.remarks.push_back(version->where + ": has FSDP 2 settings already and is not changed");
    return result;
  }
  Node block = Node::map();
  for (const auto& [key, node] : old->entries) {
    convert_entry(key, node, result, block);
  }
  block.set("fsdp_version", Node::number(2));
  result.document.set("fsdp_config", std::move(block));
  return result;
}

}  // namespace acc::documents
