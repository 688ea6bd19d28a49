#pragma once

#include "state_dict/gathered.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>

namespace acc::checkpoint {

/// Returns the dtype in which an item is written.
Dtype written_dtype(const FullItem& item, std::optional<DType> dtype);

/// Writes items [first, first + count) to one new file and flushes it: safetensors if the path ends
/// in .safetensors, otherwise a torch.save archive. Rank 0 calls it. `dtype` is for parameters;
/// absent: the dtype in which they are kept.
void write_weights_file(const std::filesystem::path& path, GatheredTensors& tensors,
                        std::size_t first, std::size_t count, std::optional<DType> dtype);

}  // namespace acc::checkpoint
