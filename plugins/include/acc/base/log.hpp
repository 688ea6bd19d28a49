#pragma once

#include <spdlog/spdlog.h>

#include <memory>
#include <string_view>

namespace acc {

/// Returns the named logger of one library: `plugins`, `launcher`, `rendezvous`, `collectives` or
/// `runtime`. Logs go to stderr. The level comes from `ACC_LOG` if it names the logger
/// (`ACC_LOG=runtime:debug,launcher:warn`), else from `ACC_LOG_LEVEL`, else it is `info`.
/// Thread-safe.
std::shared_ptr<spdlog::logger> logger(std::string_view name);

/// Adds `[rank/world_size]` to every later log line of this process. Called by workers; the
/// launcher's lines have no rank.
void set_log_rank(int rank, int world_size);

}  // namespace acc
