#pragma once

#include <spdlog/spdlog.h>

#include <memory>
#include <string_view>

namespace acc {

/// The named logger of one library: `plugins`, `launcher`, `rendezvous`, `collectives`, `runtime`.
/// Logs go to stderr. Level: `ACC_LOG=runtime:debug,launcher:warn` for one logger, else
/// `ACC_LOG_LEVEL`, else `info`. Any thread may call.
std::shared_ptr<spdlog::logger> logger(std::string_view name);

/// Puts `[rank/world_size]` into every later line of this process; the launcher's own lines carry
/// none.
void set_log_rank(int rank, int world_size);

}  // namespace acc
