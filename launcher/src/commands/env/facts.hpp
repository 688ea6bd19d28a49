// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/host_facts.hpp"
#include "acc/plugins/environment.hpp"

#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::commands {

/// Names and values, printed as one line each.
using Facts = std::vector<std::pair<std::string, std::string>>;

Facts build_facts();                        ///< version, compiler and libraries of this build
Facts system_facts(const HostFacts& host);  ///< kernel, memory, CPU cores and resource limits
Facts gpu_facts(const HostFacts& host);     ///< driver, GPUs and NCCL
/// Versions of Python and of its packages. Starts a Python process.
Facts python_facts(const plugins::Environment& environment);

/// Variables of the environment that affect acclaunch, its workers or NCCL.
Facts variable_facts(const plugins::Environment& environment);

}  // namespace acc::launcher::commands
