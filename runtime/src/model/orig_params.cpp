// SPDX-License-Identifier: Apache-2.0
#include "model/orig_params.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

namespace acc::model {
namespace {

using sharding::ParameterRecord;

/// Throws if `kind_of` differs for two parameters of a unit. demand: the rule, for the message.
template <typename KindOf>
void check_alike(const std::string& unit, const std::vector<ParameterRecord>& parameters,
                 const char* demand, const KindOf& kind_of) {
  const ParameterRecord* first = nullptr;
  for (const ParameterRecord& each : parameters) {
    if (each.ignored) {
      continue;
    }
    if (first == nullptr) {
      first = &each;
    } else if (kind_of(each) != kind_of(*first)) {
      throw Error(
          Errc::config,
          fmt::format("fsdp_use_orig_params false: {} in unit '{}', found {} {} and {} {}; "
                      "set it to true or wrap them separately",
                      demand, unit, first->name, kind_of(*first), each.name, kind_of(each)));
    }
  }
}

}  // namespace

void check_trained_alike(const settings::ShardingSettings& settings, const std::string& unit,
                         const std::vector<ParameterRecord>& parameters) {
  if (settings.use_orig_params) {
    return;
  }
  check_alike(unit, parameters, "expected all parameters trained or all frozen",
              [](const ParameterRecord& each) -> std::string {
                return each.trainable ? "trained" : "frozen";
              });
}

void check_grouped_alike(const settings::ShardingSettings& settings, const std::string& unit,
                         const std::vector<ParameterRecord>& parameters,
                         const std::function<std::string(const ParameterRecord&)>& group_of) {
  if (settings.use_orig_params) {
    return;
  }
  check_alike(
      unit, parameters, "expected one group of the optimizer", [&](const ParameterRecord& each) {
        const std::string group = group_of(each);
        return group.empty() ? std::string("in no group") : fmt::format("in group '{}'", group);
      });
}

}  // namespace acc::model
