#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace acc::launcher {

/// The first line of a small file in /proc or /sys; empty where it cannot be read.
std::string first_line(const std::filesystem::path& file);

/// The number behind `word` in a file of lines as "MemTotal: 16331 kB" or "oom_kill 3"; with no
/// word, the one that the file begins with. Empty where there is none.
std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& word);

/// The number of this process's pid namespace; empty where it cannot be read. Processes are counted
/// anew in each, as in containers.
std::optional<std::int64_t> pid_namespace(const std::filesystem::path& root = "/");
inline constexpr std::int64_t kFirstPidNamespace = 4026531836;  ///< Linux: PROC_PID_INIT_INO

}  // namespace acc::launcher
