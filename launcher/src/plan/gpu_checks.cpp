// SPDX-License-Identifier: Apache-2.0
#include "plan/gpu_checks.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher::plan {

bool shares_gpus(const plugins::Environment& environment) {
  return plugins::parse_boolean(host::value_of(environment, host::variables::share_gpus, "0"))
      .value_or(false);
}

void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment) {
  const std::string list = host::value_of(environment, host::variables::cuda_visible_devices);
  const auto entries = static_cast<int>(split(list, ',').size());
  if (!list.empty() && entries < local_world_size) {
    throw Error(Errc::config, where + " needs a GPU for each of " +
                                  std::to_string(local_world_size) +
                                  " workers, but CUDA_VISIBLE_DEVICES is \"" + list + "\"");
  }
}

}  // namespace acc::launcher::plan
