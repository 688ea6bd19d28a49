#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What a program prints to stdout, in this process's environment; its stderr is dropped. Nothing
/// where it cannot be run, fails, or takes longer than ten seconds; then it is killed.
std::optional<std::string> command_output(const std::filesystem::path& program,
                                          const std::vector<std::string>& arguments);

}  // namespace acc::launcher
