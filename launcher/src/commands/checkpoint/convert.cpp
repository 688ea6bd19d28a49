// SPDX-License-Identifier: Apache-2.0
// acclaunch convert and reshard: write a checkpoint in another format, or for another number of
// ranks. The work is done by checkpoint::conversion of the runtime.
#include "acc/checkpoint/convert/convert.hpp"

#include "acc/base/error.hpp"
#include "commands/checkpoint/shared.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <map>

namespace acc::launcher::commands {
namespace {

namespace conversion = checkpoint::conversion;
using conversion::Target;

struct ConvertFlags {
  std::string path, out, to;
  int zero_stage = 2;
  int index = 0;
  WorkFlags work;
};

const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> kTargets = {{"safetensors", Target::safetensors},
                                                         {"bin", Target::bin},
                                                         {"dcp", Target::dcp},
                                                         {"deepspeed", Target::deepspeed}};
  return kTargets;
}

/// Reads the flags of convert. Returns false if --help was given.
bool read(std::span<const std::string> arguments, ConvertFlags& flags) {
  CLI::App app("Converts a checkpoint from any supported format to another, in bounded memory.",
               "acclaunch convert");
  app.add_option("path", flags.path, "the checkpoint: a file or a folder")->required();
  app.add_option("out", flags.out, "the output folder")->required();
  app.add_option(
         "--to", flags.to,
         "output format: safetensors, bin (pytorch_model.bin, optimizer.bin), dcp "
         "(torch.distributed.checkpoint; with optimizer state in Accelerate's folder layout) or "
         "deepspeed")
      ->required()
      ->check(CLI::IsMember({"safetensors", "bin", "dcp", "deepspeed"}));
  app.add_option("--zero_stage", flags.zero_stage, "ZeRO stage of --to deepspeed; default 2")
      ->check(CLI::Range(1, 3));
  app.add_option("--index", flags.index,
                 "index of the model in a folder that holds several; default 0")
      ->check(CLI::Range(0, 1'000'000));
  flags.work.add_num_processes(app, false);
  flags.work.add_dtype(app);
  flags.work.add_max_shard_size(app);
  flags.work.add_overwrite(app);
  flags.work.add_threads(app);
  return read_options(app, arguments);
}

/// Reads the flags of reshard. Returns false if --help was given.
bool read(std::span<const std::string> arguments, ConvertFlags& flags, const char* name) {
  CLI::App app(
      "Rewrites a sharded checkpoint for another number of ranks: a torch DCP folder sharded by "
      "rows,\n"
      "a folder written by Accelerate's save_state or train_gpt --save, or a DeepSpeed "
      "checkpoint.\n"
      "Most programs load a checkpoint with any number of ranks; this is for those that do not.",
      name);
  app.add_option("path", flags.path, "the checkpoint")->required();
  app.add_option("out", flags.out, "the output folder")->required();
  flags.work.add_num_processes(app, true);
  flags.work.add_overwrite(app);
  flags.work.add_threads(app);
  return read_options(app, arguments);
}

}  // namespace

int convert_command(std::span<const std::string> arguments) {
  ConvertFlags flags;
  if (!read(arguments, flags)) {
    return 0;
  }
  conversion::Options options = flags.work.options();
  options.to = targets().at(flags.to);
  options.zero_stage = flags.zero_stage;
  if (options.max_shard_nbytes != 0 && options.to != Target::safetensors) {
    throw Error(Errc::invalid_argument, "--max_shard_size is for --to safetensors");
  }
  print_result("converted",
               conversion::convert(checkpoint::open_checkpoint(
                                       flags.path, checkpoint::Want::everything, flags.index),
                                   flags.out, options),
               flags.work.quiet());
  return 0;
}

int reshard_command(std::span<const std::string> arguments) {
  ConvertFlags flags;
  if (!read(arguments, flags, "acclaunch reshard")) {
    return 0;
  }
  print_result("resharded", conversion::reshard(flags.path, flags.out, flags.work.options()),
               flags.work.quiet());
  return 0;
}

}  // namespace acc::launcher::commands
