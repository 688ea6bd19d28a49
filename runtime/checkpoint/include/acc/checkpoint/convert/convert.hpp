// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Converts a checkpoint of any format into another format, or for another world size, in bounded
/// memory: one tile of a MiB per thread, whatever the size of the checkpoint. Outputs are complete
/// or absent. What was written is read back and checked before it gets its name.
namespace acc::checkpoint::conversion {

/// Form of the output. LOCAL_STATE_DICT is not one: its flat parameters only fit the run that made
/// them.
enum class Target {
  safetensors,  ///< OUT/model.safetensors, or shards with an index; weights only
  bin,          ///< OUT/pytorch_model.bin, and OUT/optimizer.bin if there is optimizer state
  dcp,          ///< OUT: a torch DCP folder of weights, or a save folder with optimizer state
  deepspeed,    ///< OUT/latest, OUT/TAG/…
};

inline constexpr const char* kBinFile = "pytorch_model.bin";

struct Options {
  Target to = Target::safetensors;
  int num_processes = 1;               ///< number of ranks for which dcp and deepspeed are cut
  std::optional<Dtype> dtype;          ///< dtype of weights that are real numbers
  std::uint64_t max_shard_nbytes = 0;  ///< largest safetensors file; 0: one file
  int zero_stage = 2;
  int num_threads = 1;
  /// True if the output may replace an existing checkpoint.
  bool overwrite = false;
  /// Writes only the weights. If there are none, writes the optimizer's state as pytorch_model.bin.
  /// This is what Accelerate's merge-weights does.
  bool merge = false;
  std::string writer;  ///< "acclaunch 0.1.0"
  ShowProgress progress = ShowProgress::no;
};

struct Result {
  std::vector<std::filesystem::path> files;  ///< the files, or the one folder
  std::size_t tensors = 0;                   ///< written, read back and found equal
  std::uint64_t nbytes = 0;                  ///< size of their elements
  std::vector<std::string> left_out;         ///< what the format cannot store
};

/// Throws Error(config) if `from` is damaged or `out` holds something already, Error(not_supported)
/// if the conversion is not possible.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options);

/// Converts a checkpoint for another number of ranks in the same format: a DCP folder with all its
/// entries; a save folder of SHARDED_STATE_DICT with its other files; a DeepSpeed checkpoint. Other
/// formats are the same for any number of ranks and are refused by name.
Result reshard(const std::filesystem::path& from, const std::filesystem::path& out,
               const Options& options);

}  // namespace acc::checkpoint::conversion
