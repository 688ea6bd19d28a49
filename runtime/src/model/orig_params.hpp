// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"
#include "sharding/flat_plan.hpp"

#include <functional>
#include <string>
#include <vector>

/// Checks for fsdp_use_orig_params false. FSDP then exposes each unit as one flat parameter, which
/// is trained or frozen as a whole and is in one group of the optimizer. Ignored parameters are not
/// part of it.
namespace acc::model {

/// Throws Error(config), naming unit and parameters, if some are trained and others are frozen.
void check_trained_alike(const settings::ShardingSettings& settings, const std::string& unit,
                         const std::vector<sharding::ParameterRecord>& parameters);

/// Throws Error(config), naming unit, parameters and groups, if trained parameters of the unit are
/// in different groups. group_of: returns the name of a parameter's group; "" for none.
void check_grouped_alike(
    const settings::ShardingSettings& settings, const std::string& unit,
    const std::vector<sharding::ParameterRecord>& parameters,
    const std::function<std::string(const sharding::ParameterRecord&)>& group_of);

}  // namespace acc::model
