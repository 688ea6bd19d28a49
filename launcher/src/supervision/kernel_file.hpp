// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace acc::launcher::supervision {

/// Returns the first line of a small file in /proc or /sys; empty if it cannot be read.
std::string first_line(const std::filesystem::path& file);

/// Returns the number that follows `word` in a file with lines such as "MemTotal: 16331 kB" or
/// "oom_kill 3". If `word` is empty, returns the number at the beginning of the file. Returns empty
/// if there is no such number.
std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& word);

/// Returns the inode number of this process's pid namespace; empty if it cannot be read. Pids are
/// unique within one namespace only; a container usually has its own.
std::optional<std::int64_t> pid_namespace(const std::filesystem::path& root = "/");
/// The host's initial pid namespace: PROC_PID_INIT_INO in include/linux/proc_ns.h.
inline constexpr std::int64_t kFirstPidNamespace = 4026531836;

}  // namespace acc::launcher::supervision
