#pragma once

#include "acc/launcher/host_facts.hpp"
#include "acc/plugins/environment.hpp"

#include <string>
#include <utility>
#include <vector>

namespace acc::launcher {

/// Names and values, one line each.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts build_facts();
Facts system_facts(const HostFacts& host);
Facts gpu_facts(const HostFacts& host);
Facts python_facts(const plugins::Environment& environment);

/// Those that change what acclaunch, its workers or NCCL do.
Facts variable_facts(const plugins::Environment& environment);

}  // namespace acc::launcher
