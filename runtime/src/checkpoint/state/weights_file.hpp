#pragma once

#include "checkpoint/state/gathered.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>

namespace acc::checkpoint {

/// In which dtype an item is written.
Dtype written_dtype(const FullItem& item, std::optional<DType> dtype);

/// Rank 0: writes items [first, first + count) into one new file, safetensors by its ending, else
/// torch.save's, and flushes it. dtype: of parameters; absent: that in which they are kept.
void write_weights_file(const std::filesystem::path& path, GatheredTensors& tensors,
                        std::size_t first, std::size_t count, std::optional<DType> dtype);

}  // namespace acc::checkpoint
