#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/launch_plan.hpp"
#include "acc/plugins/document.hpp"

#include <optional>

namespace acc::launcher {

/// Where Accelerate keeps the configuration of a launch that names none:
/// `$HF_HOME/accelerate/default_config.yaml`.
std::filesystem::path default_config_path(const plugins::Environment& environment);

/// The configuration file that `--config_file` names, or the one at Accelerate's default place if
/// there is one. Throws Error(not_found) or Error(config).
std::optional<plugins::Document> load_config(const Flags& flags,
                                             const plugins::Environment& environment);

/// Decides everything that `accelerate launch` would, but for the deviations of docs/compat.md. A
/// value is taken from the flags, else the file, else (few) the environment, else the default, and
/// keeps that source in `LaunchPlan::settings`. Asks the disk only for the program, the DeepSpeed
/// JSON file and the tools that start it (mpirun, deepspeed), and nvidia-smi where the driver's
/// libraries say nothing. Throws Error with every fault of command line and file at once (exit
/// status 2), or with that of the program alone (126, 127).
LaunchPlan resolve(const Flags& flags, const std::optional<plugins::Document>& config,
                   const plugins::Environment& environment, const HostFacts& facts);

}  // namespace acc::launcher
