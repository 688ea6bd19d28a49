#include "plan/gpu_checks.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings.hpp"

namespace acc::launcher {

bool shares_gpus(const plugins::Environment& environment) {
  return plugins::parse_boolean(plugins::variable(environment, "ACC_SHARE_GPUS", "0"))
      .value_or(false);
}

void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment) {
  const std::string list = plugins::variable(environment, "CUDA_VISIBLE_DEVICES");
  const auto entries = static_cast<int>(plugins::split(list, ',').size());
  if (!list.empty() && entries < local_world_size) {
    throw Error(Errc::config, where + " needs a GPU for each of " +
                                  std::to_string(local_world_size) +
                                  " workers, but CUDA_VISIBLE_DEVICES is \"" + list + "\"");
  }
}

}  // namespace acc::launcher
