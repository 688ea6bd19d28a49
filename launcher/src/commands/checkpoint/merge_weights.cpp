// SPDX-License-Identifier: Apache-2.0
// acclaunch merge-weights: merges the weights of a sharded checkpoint into one file. Flags and
// behaviour follow accelerate merge-weights (accelerate/commands/merge.py).
#include "acc/base/error.hpp"
#include "acc/checkpoint/convert/convert.hpp"
#include "commands/checkpoint/shared.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
namespace conversion = checkpoint::conversion;
using checkpoint::Format;

struct MergeFlags {
  std::string checkpoint_directory, output_path;
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
  WorkFlags work;
};

MergeFlags read_merge_flags(std::span<const std::string> arguments) {
  MergeFlags flags;
  OptionParser parser(
      "Merges the weights of a sharded checkpoint into one file, OUT/model.safetensors, in "
      "bounded\n"
      "memory. The checkpoint may be a torch DCP folder, a folder written by Accelerate's\n"
      "save_state or train_gpt --save, or a DeepSpeed checkpoint (fp32 weights, as\n"
      "zero_to_fp32.py writes them).",
      "acclaunch merge-weights");
  parser.add_option("checkpoint_directory", flags.checkpoint_directory, "the checkpoint")
      .required();
  parser.add_option("output_path", flags.output_path, "folder for the merged weights").required();
  parser.add_flag("--unsafe_serialization", flags.unsafe_serialization,
                  "write pytorch_model.bin instead of model.safetensors");
  parser.add_flag("--remove_checkpoint_dir", flags.remove_checkpoint_dir,
                  "remove the checkpoint's folder after the output has been verified");
  flags.work.add_dtype(parser);
  flags.work.add_max_shard_size(parser);
  flags.work.add_threads(parser);
  parser.parse(arguments);
  return flags;
}

/// True if `inner` is `outer` or is inside of it.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  const fs::path path = fs::weakly_canonical(inner);
  const fs::path folder = fs::weakly_canonical(outer);
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

/// Throws Error(invalid_argument) if the folder to remove contains anything else than the merged
/// weights.
void check_removable(const MergeFlags& flags, const checkpoint::Stored& stored) {
  if (lies_in(flags.output_path, flags.checkpoint_directory)) {
    throw Error(Errc::invalid_argument, "--remove_checkpoint_dir would remove " +
                                            flags.output_path + " too, which is inside of " +
                                            flags.checkpoint_directory);
  }
  const bool has_more =
      stored.format == Format::save_folder ||
      stored.path.path() != flags.checkpoint_directory ||  // the newest of a series
      fs::exists(fs::path(flags.checkpoint_directory) / "latest");
  if (has_more || !fs::is_directory(flags.checkpoint_directory)) {
    throw Error(Errc::invalid_argument,
                "--remove_checkpoint_dir: " + flags.checkpoint_directory +
                    " contains more than the merged weights; give the folder of the weights itself "
                    "(pytorch_model_fsdp_0, or a DeepSpeed tag), or remove it by hand");
  }
}

}  // namespace

int merge_weights_command(std::span<const std::string> arguments) {
  const MergeFlags flags = read_merge_flags(arguments);
  conversion::Options options = flags.work.options();
  options.to =
      flags.unsafe_serialization ? conversion::Target::bin : conversion::Target::safetensors;
  options.merge = true;
  if (flags.unsafe_serialization && options.max_shard_nbytes != 0) {
    throw Error(Errc::invalid_argument,
                "--max_shard_size is for safetensors; remove --unsafe_serialization");
  }
  const checkpoint::Stored stored =
      checkpoint::open_checkpoint(flags.checkpoint_directory, checkpoint::Want::weights);
  if (flags.remove_checkpoint_dir) {
    check_removable(flags, stored);
  }
  const conversion::Result result = conversion::convert(stored, flags.output_path, options);
  print_result("merged", result, flags.work.quiet());
  if (flags.remove_checkpoint_dir) {
    stored.path.check_unchanged();
    std::error_code error;
    fs::remove_all(flags.checkpoint_directory, error);
    if (error) {
      throw Error(Errc::config, "--remove_checkpoint_dir: the weights are merged, but " +
                                    flags.checkpoint_directory +
                                    " cannot be removed: " + error.message());
    }
    if (!flags.work.quiet()) {
      std::printf("removed %s\n", flags.checkpoint_directory.c_str());
    }
  }
  return 0;
}

}  // namespace acc::launcher::commands
