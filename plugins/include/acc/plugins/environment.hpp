#pragma once

#include "acc/plugins/program_settings.hpp"
#include "acc/plugins/settings.hpp"
#include "acc/plugins/sharding_settings.hpp"

#include <map>
#include <string>
#include <string_view>

namespace acc::plugins {

/// Names and values of environment variables; the launcher builds it, a worker reads it back.
using Environment = std::map<std::string, std::string>;

/// The secret of a job (acc/base/token.hpp), which the launchers of all machines share and give to
/// their workers, and which is never put into a store: the runtime derives the names of its store
/// keys from it, and ranks prove with it that they belong together.
inline constexpr const char* kJobSecretVariable = "ACC_JOB_SECRET";

/// The value of a variable, or `fallback` where it is unset or empty.
std::string variable(const Environment& environment, const std::string& name,
                     const std::string& fallback = "");

/// The environment of this process.
ACC_API Environment current_environment();

/// Whether settings of a section count in a mode: `fsdp`, `deepspeed` or `none`.
bool applies(Section section, std::string_view origin) noexcept;

/// What settings mean to the runtime. `origin` is `fsdp`, `deepspeed` or `none`. Launcher and
/// worker both call it, so that a plan that resolves is one that its workers understand. A hybrid
/// strategy without a shard size is about machines, which the runtime knows. Throws Error(config).
ShardingSettings sharding_settings(const Settings& settings, std::string_view origin,
                                   int world_size);

/// The variables that carry `settings` to a worker, besides torchrun's: Accelerate's where it has
/// one, `ACC_<KEY>` for the rest.
Environment settings_to_environment(const Settings& settings, std::string_view origin,
                                    Device device);

/// Reads back what the launcher injected: torchrun's or DeepSpeed's identity variables, FSDP_*,
/// ACCELERATE_* and ACC_*. Without any of them it is one rank and no sharding. Throws Error(config)
/// that names the variable, its value and what was expected; all faults at once. What `program`
/// says wins, and its mode holds where the environment says none; a mode that contradicts the
/// environment's, and values that exclude each other, are refused with both places.
ACC_API RuntimeSettings settings_from_environment(const Environment& environment,
                                                  const ProgramSettings& program = {});

}  // namespace acc::plugins
