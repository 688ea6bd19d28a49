#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace acc {

/// The largest file that `read_input_file` takes.
inline constexpr std::size_t kLargestInputFile = std::size_t{16} << 20;

/// The text of a file that a user named: a configuration, a hostfile. It may be a pipe, such as
/// `<(command)` and /dev/stdin, which is read until its writers have closed it. Throws
/// Error(not_found) where it cannot be opened; Error(config) where it cannot be read, is a folder,
/// is larger than kLargestInputFile bytes, or is a FIFO that nobody opened for writing within 5
/// seconds.
std::string read_input_file(const std::filesystem::path& path);

}  // namespace acc
