#pragma once

#include "checkpoint/safetensors/file.hpp"

namespace acc::checkpoint {

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::size_t data_begin = 0;  ///< where the tensors' bytes begin in the file
};

/// Bytes of an element; absent for a dtype that the format does not know.
std::optional<std::size_t> element_size(std::string_view dtype) noexcept;

/// Reads and checks the header of a file of these bytes; `path` is for messages.
SafetensorsHeader parse_header(std::span<const std::byte> file, const std::filesystem::path& path);

/// Length word and JSON, padded with spaces to a multiple of 8.
std::string format_header(std::span<const TensorSpec> tensors,
                          const std::map<std::string, std::string>& metadata);

}  // namespace acc::checkpoint
