// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace acc {

/// Largest file that `read_input_file` accepts, in bytes.
inline constexpr std::size_t kLargestInputFile = std::size_t{16} << 20;

/// Returns the text of a file that a user named, such as a configuration or a hostfile. The file
/// may be a pipe (`<(command)`, /dev/stdin); a pipe is read until all its writers have closed it.
/// Throws Error(not_found) if the file cannot be opened. Throws Error(config) if it cannot be read,
/// is a folder, is larger than kLargestInputFile bytes, or is a FIFO that no process has opened for
/// writing within 5 seconds.
std::string read_input_file(const std::filesystem::path& path);

/// The same for a file that programs write, such as metrics, of any size. Throws Error(config) for
/// what is neither a file nor a pipe: a device may have no end.
std::string read_data_file(const std::filesystem::path& path);

}  // namespace acc
