#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <string>
#include <vector>

namespace acc::sharding {

/// A unit as the program declared it, as far as wrapping looks at it.
struct DeclaredUnit {
  std::string name;
  std::string class_name;
  std::int64_t numel = 0;
  bool is_root = false;
};

/// For each declared unit whether it is sharded by itself (true) or becomes part of the root unit
/// (false): FSDP's auto_wrap_policy on the program's own units. Unset: as declared. Throws
/// Error(config) for a class in fsdp_transformer_layer_cls_to_wrap that no unit has.
std::vector<bool> wrap(const plugins::ShardingSettings& settings,
                       const std::vector<DeclaredUnit>& units);

}  // namespace acc::sharding
