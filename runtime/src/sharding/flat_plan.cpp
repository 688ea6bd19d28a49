#include "sharding/flat_plan.hpp"

namespace acc::sharding {

std::vector<FlatPlan> plan_flats(const std::vector<ParameterRecord>& parameters,
                                 const plugins::ShardingSettings& settings) {
  static_cast<void>(settings);
  std::vector<FlatPlan> flats;
  for (const bool persistent : {false, true}) {
    for (const bool trainable : {true, false}) {
      FlatPlan plan{.traits = {.trainable = trainable, .persistent = persistent}, .members = {}};
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].trainable == trainable && parameters[i].persistent == persistent) {
          plan.members.push_back(i);
        }
      }
      if (!plan.members.empty()) {
        flats.push_back(std::move(plan));
      }
    }
  }
  return flats;
}

}  // namespace acc::sharding
