// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/convert.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "convert/tiles.hpp"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

/// The writers behind convert(), one per output format.
namespace acc::checkpoint::conversion {

Result write_safetensors(const Stored& stored, const std::filesystem::path& folder,
                         const Options& options);
Result write_bin(const Stored& stored, const std::filesystem::path& folder, const Options& options);
Result write_dcp(const Stored& stored, const std::filesystem::path& folder, const Options& options);
Result write_deepspeed(const Stored& stored, const std::filesystem::path& folder,
                       const Options& options);

/// Returns all tensors that are not optimizer state, in the order of the checkpoint. `dtype`
/// replaces the dtype of real tensors. Throws Error(not_supported) if two have one name.
std::vector<OutputTensor> weights_of(const Stored& stored, std::optional<Dtype> dtype);
/// Returns the optimizer's state, in the order of the checkpoint, with its dtypes. Throws
/// Error(not_supported) if the names of its parameters are unknown.
std::vector<OutputTensor> moments_of(const Stored& stored);
/// True if there is any.
bool has_optimizer(const Stored& stored);
/// Returns the optimizer's name, as the checkpoint says or as its states show; "" if neither tells.
std::string known_optimizer(const Stored& stored);
/// The same; throws Error(not_supported) if it is unknown.
std::string optimizer_of(const Stored& stored);

/// Throws Error(config) if the file exists and may not be replaced: it is read, or there is no
/// `overwrite`. A merge replaces other files, as Accelerate's does.
void check_replaces(const Stored& from, const std::filesystem::path& file, const Options& options);

/// Tells in `result` which files and folders next to what was read the output does not have: other
/// models, the state of schedulers, the configuration of a model. read: names in `from`.
void add_other_files(const InputPath& from, std::set<std::string> read,
                     const std::filesystem::path& out, Result& result);

/// Passes elements [begin, end) of a stored tensor to `sink`, tile by tile.
void stream(TensorReader& reader, const StoredTensor& tensor, Range range, Dtype dtype,
            ProgressMeter& meter, const torch::Sink& sink);

/// Verifies the tensors that reading in tiles cannot check, because they have one checksum for a
/// long record. To be called before they are read in tiles. Throws Error(config) for damage.
void check_sources(const std::vector<const StoredTensor*>& tensors, TensorReader& reader,
                   const Options& options);

/// Reads back a checkpoint that was just written: every tensor must exist with its dtype and shape,
/// and all checksums, which were computed while writing, must match. Returns the number of tensors.
std::size_t check_written(const Stored& written, const std::vector<OutputTensor>& tensors,
                          const Options& options);

/// Checks all checksums of such a checkpoint.
void check_written_bytes(const Stored& written, const Options& options);

/// Returns the error "… does not read back as it was written".
Error not_as_written(const std::filesystem::path& path, const std::string& tensor);

}  // namespace acc::checkpoint::conversion
