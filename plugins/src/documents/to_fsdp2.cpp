// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/plugins/convert_config.hpp"
#include "acc/plugins/setting_rows.hpp"
#include "acc/plugins/settings.hpp"
#include "acc/plugins/settings_table.hpp"

#include <algorithm>
#include <array>

namespace acc::plugins {
namespace {

// The same translation as `accelerate to-fsdp2` of Accelerate 1.15, key by key.

using namespace std::string_view_literals;

/// A key of FSDP 1 that FSDP 2 does not have.
struct Dropped {
  std::string_view key;
  std::string_view why;
};
constexpr std::array kDropped = {
    Dropped{"fsdp_backward_prefetch", "FSDP 2 has no such setting any more"},
    Dropped{"fsdp_sync_module_states", "FSDP 2 has no such setting any more"},
    Dropped{"fsdp_use_orig_params", "FSDP 2 has no such setting any more"},
    Dropped{"fsdp_forward_prefetch", "FSDP 2 has no such setting yet"},
};

/// Returns the value of fsdp_reshard_after_forward for a strategy of FSDP 1: true if the strategy
/// reshards. A boolean stays.
Node reshard_value(const std::string& key, const Node& node) {
  if (node.kind == Node::Kind::boolean) {
    return node;
  }
  Settings settings;
  settings.set("fsdp_sharding_strategy"_key, node.text, {Source::Kind::file, node.where});
  const std::string strategy = settings.choice("fsdp_sharding_strategy"_key);
  Node value = Node::boolean(strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD");
  value.where = node.where + ": " + key;
  return value;
}

void convert_entry(const std::string& key, const Node& node, Conversion& result, Node& block) {
  const auto* dropped = std::ranges::find(kDropped, key, &Dropped::key);
  if (dropped != kDropped.end()) {
    result.remarks.push_back(node.where + ": " + key +
                             " is left out: " + std::string(dropped->why));
  } else if (key == "fsdp_sharding_strategy" || key == "fsdp_reshard_after_forward") {
    block.set("fsdp_reshard_after_forward", reshard_value(key, node));
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

}  // namespace acc::plugins
