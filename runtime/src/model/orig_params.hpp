#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "sharding/flat_plan.hpp"

#include <functional>
#include <string>
#include <vector>

/// What fsdp_use_orig_params off forbids: a unit then is one parameter to FSDP, and so is trained
/// as a whole and in one group of the optimizer. Ignored parameters are outside of it.
namespace acc::model {

/// Throws Error(config), naming unit and parameters, where some are trained and others frozen.
void check_trained_alike(const plugins::ShardingSettings& settings, const std::string& unit,
                         const std::vector<sharding::ParameterRecord>& parameters);

/// `group_of`: which group of the optimizer a trained parameter is in; "" for none. Throws
/// Error(config), naming unit, parameters and groups, where they differ within the unit.
void check_grouped_alike(
    const plugins::ShardingSettings& settings, const std::string& unit,
    const std::vector<sharding::ParameterRecord>& parameters,
    const std::function<std::string(const sharding::ParameterRecord&)>& group_of);

}  // namespace acc::model
