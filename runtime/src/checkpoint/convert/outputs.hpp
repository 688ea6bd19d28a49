#pragma once

#include "acc/base/error.hpp"
#include "checkpoint/catalog/tensor_reader.hpp"
#include "checkpoint/convert/convert.hpp"
#include "checkpoint/convert/selection.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <filesystem>
#include <string>
#include <vector>

/// The writers of convert(), one an output.
namespace acc::checkpoint::conversion {

Result write_safetensors(const Stored& stored, const std::filesystem::path& folder,
                         const Options& options);
Result write_bin(const Stored& stored, const std::filesystem::path& folder, const Options& options);
Result write_dcp(const Stored& stored, const std::filesystem::path& folder, const Options& options);
Result write_deepspeed(const Stored& stored, const std::filesystem::path& folder,
                       const Options& options);

/// Hands elements [begin, end) of a stored tensor to `sink` in tiles.
void stream(TensorReader& reader, const StoredTensor& tensor, Range range, Dtype dtype,
            ProgressMeter& meter, const torch::Sink& sink);

/// Before tensors are read in tiles: checks those that reading in tiles does not. Throws
/// Error(config) for damage.
void check_sources(const std::vector<const StoredTensor*>& tensors, TensorReader& reader,
                   const Options& options);

/// Reads a checkpoint that was just written and compares it with what was meant: every tensor there
/// in its dtype and shape, every checksum, made of what was on its way, right. Gives their number.
std::size_t check_written(const Stored& written, const std::vector<OutputTensor>& tensors,
                          const Options& options);

/// "… does not read back as it was written".
Error not_as_written(const std::filesystem::path& path, const std::string& tensor);

}  // namespace acc::checkpoint::conversion
