#pragma once

#include "checkpoint/catalog/open.hpp"
#include "checkpoint/convert/progress.hpp"
#include "checkpoint/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// A checkpoint of any format into another format, or for another world, in bounded memory: tiles
/// of a megabyte a thread, whatever the size. Outputs are complete or absent, and what was written
/// is read back and checked before it gets its name.
namespace acc::checkpoint::conversion {

/// What is written. There is no LOCAL_STATE_DICT: its flat parameters are of one run alone.
enum class Target {
  safetensors,  ///< OUT/model.safetensors, or shards with an index; weights alone
  bin,          ///< OUT/pytorch_model.bin; and OUT/optimizer.bin, where the optimizer is there
  dcp,          ///< OUT: a torch DCP folder of weights; with the optimizer a save folder with two
  deepspeed,    ///< OUT/latest, OUT/TAG/…
};

inline constexpr const char* kBinFile = "pytorch_model.bin";

struct Options {
  Target to = Target::safetensors;
  int num_processes = 1;               ///< ranks that dcp and deepspeed are cut for
  std::optional<Dtype> dtype;          ///< of weights that are real numbers
  std::uint64_t max_shard_nbytes = 0;  ///< of safetensors; 0: one file
  int zero_stage = 2;
  int num_threads = 1;
  /// Whether the folder of a dcp or deepspeed output may replace a checkpoint that is there.
  bool overwrite = false;
  /// Weights alone, where there are any, else the optimizer's state as `bin`'s pytorch_model.bin:
  /// as Accelerate's merge-weights.
  bool merge = false;
  std::string writer;  ///< "acclaunch 0.1.0"
  Progress progress;
};

struct Result {
  std::vector<std::filesystem::path> files;  ///< or the folder
  std::size_t tensors = 0;                   ///< written, read back and found equal
  std::uint64_t nbytes = 0;                  ///< of their elements
  std::vector<std::string> left_out;         ///< what the format has no place for
};

/// Throws Error(config): what of `from` is damaged, what `out` holds already, what cannot be done.
Result convert(const Stored& from, const std::filesystem::path& out, const Options& options);

/// A checkpoint for another number of ranks in its own format: a DCP folder with all that it has,
/// whatever it is; a save folder of SHARDED_STATE_DICT with its other files; a DeepSpeed
/// checkpoint. Others are refused by name: they are the same for any number.
Result reshard(const std::filesystem::path& from, const std::filesystem::path& out,
               const Options& options);

}  // namespace acc::checkpoint::conversion
