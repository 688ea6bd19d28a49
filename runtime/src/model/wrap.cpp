#include "model/wrap.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace acc::sharding {
namespace {

void check_classes(const std::vector<std::string>& wanted, const std::vector<DeclaredUnit>& units) {
  std::set<std::string> present;
  for (const DeclaredUnit& each : units) {
    present.insert(each.class_name);
  }
  std::vector<std::string> missing;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(missing),
               [&](const std::string& name) { return !present.contains(name); });
  if (!missing.empty()) {
    throw Error(
        Errc::config,
        fmt::format("fsdp_transformer_layer_cls_to_wrap names {}, which this model lacks; it "
                    "has {}",
                    fmt::join(missing, ", "), fmt::join(present, ", ")));
  }
}

}  // namespace

std::vector<bool> wrap(const plugins::ShardingSettings& settings,
                       const std::vector<DeclaredUnit>& units) {
  const auto& classes = settings.transformer_layer_classes;
  if (settings.wrap_policy == plugins::WrapPolicy::transformer_based) {
    check_classes(classes, units);
  }
  std::vector<bool> own;
  for (const DeclaredUnit& each : units) {
    bool wrapped = true;
    switch (settings.wrap_policy) {
      case plugins::WrapPolicy::unset: break;
      case plugins::WrapPolicy::no_wrap: wrapped = false; break;
      case plugins::WrapPolicy::size_based: wrapped = each.numel >= settings.min_num_params; break;
      case plugins::WrapPolicy::transformer_based:
        wrapped = classes.empty() ||
                  std::find(classes.begin(), classes.end(), each.class_name) != classes.end();
        break;
    }
    own.push_back(wrapped && !each.is_root);
  }
  return own;
}

}  // namespace acc::sharding
