// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/program_settings.hpp"
#include "acc/settings/settings.hpp"
#include "acc/settings/sharding_settings.hpp"

#include <map>
#include <string>
#include <string_view>

namespace acc::settings {

/// Names and values of environment variables. The launcher builds one per worker; the worker
/// decodes its own.
using Environment = std::map<std::string, std::string>;

/// Environment variable that holds the secret of a job (a token of acc/base/token.hpp). The
/// launchers of all machines share the secret and pass it on to their workers. It is never written
/// to a rendezvous store. The runtime derives the names of its store keys from it, and ranks use it
/// to prove to each other that they belong to the same job.
inline constexpr const char* kJobSecretVariable = "ACC_JOB_SECRET";
/// Paths of the memory for snapshots of a machine's workers, by local rank, with ':' between them.
/// The launcher holds it while it restarts workers.
inline constexpr const char* kSnapshotMemoryVariable = "ACC_SNAPSHOT_MEMORY";
/// Path of the page by which the launcher tells its workers that it has replaced some of them
/// (acc/base/membership_page.hpp).
inline constexpr const char* kMembershipVariable = "ACC_MEMBERSHIP";

/// Returns the value of a variable, or `fallback` if it is unset or empty.
std::string variable(const Environment& environment, const std::string& name,
                     const std::string& fallback = "");

/// Returns the environment of this process.
ACC_API Environment current_environment();

/// True if settings of a section have an effect in a mode. origin: `fsdp`, `deepspeed` or `none`.
bool applies(Section section, std::string_view origin) noexcept;

/// Translates settings to those of the runtime. origin: `fsdp`, `deepspeed` or `none`. The launcher
/// calls it to check a plan and the worker calls it to execute one, so a plan that the launcher
/// accepts is always valid for its workers. If a hybrid strategy has no shard size, the result has
/// shard_size 0 and the runtime uses the number of ranks per machine. Throws Error(config).
ShardingSettings sharding_settings(const Settings& settings, std::string_view origin,
                                   int world_size);

/// Returns the variables that carry `settings` to a worker, in addition to torchrun's: Accelerate's
/// variable if it has one, else `ACC_<KEY>`.
Environment settings_to_environment(const Settings& settings, std::string_view origin,
                                    Device device);

/// Decodes the variables that a launcher set: the rank variables of torchrun or DeepSpeed, FSDP_*,
/// ACCELERATE_* and ACC_*. Without any of them the result is one rank without sharding. The values
/// of `program` have precedence, and its mode is used if the environment names none. Throws
/// Error(config) with all faults at once; each names the variable, its value and the expected
/// value. A mode of the program that contradicts the environment's, and values that exclude each
/// other, are faults too; they name both places.
ACC_API RuntimeSettings settings_from_environment(const Environment& environment,
                                                  const ProgramSettings& program = {});

}  // namespace acc::settings
