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

ConvertFlags read_convert(std::span<const std::string> arguments) {
  ConvertFlags flags;
  OptionParser parser(
      "Converts a checkpoint from any supported format to another, in bounded memory.",
      "acclaunch convert");
  parser.add_option("path", flags.path, "the checkpoint: a file or a folder").required();
  parser.add_option("out", flags.out, "the output folder").required();
  parser
      .add_option(
          "--to", flags.to,
          "output format: safetensors, bin (pytorch_model.bin, optimizer.bin), dcp "
          "(torch.distributed.checkpoint; with optimizer state in Accelerate's folder layout) or "
          "deepspeed")
      .required()
      .check_member({"safetensors", "bin", "dcp", "deepspeed"});
  parser.add_option("--zero_stage", flags.zero_stage, "ZeRO stage of --to deepspeed; default 2")
      .check_range(1, 3);
  parser
      .add_option("--index", flags.index,
                  "index of the model in a folder that holds several; default 0")
      .check_range(0, 1'000'000);
  flags.work.add_num_processes(parser, false);
  flags.work.add_dtype(parser);
  flags.work.add_max_shard_size(parser);
  flags.work.add_overwrite(parser);
  flags.work.add_threads(parser);
  parser.parse(arguments);
  return flags;
}

ConvertFlags read_reshard(std::span<const std::string> arguments) {
  ConvertFlags flags;
  OptionParser parser(
      "Rewrites a sharded checkpoint for another number of ranks: a torch DCP folder sharded by "
      "rows,\n"
      "a folder written by Accelerate's save_state or train_gpt --save, or a DeepSpeed "
      "checkpoint.\n"
      "Most programs load a checkpoint with any number of ranks; this is for those that do not.",
      "acclaunch reshard");
  parser.add_option("path", flags.path, "the checkpoint").required();
  parser.add_option("out", flags.out, "the output folder").required();
  flags.work.add_num_processes(parser, true);
  flags.work.add_overwrite(parser);
  flags.work.add_threads(parser);
  parser.parse(arguments);
  return flags;
}

}  // namespace

int convert_command(std::span<const std::string> arguments) {
  const ConvertFlags flags = read_convert(arguments);
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
  const ConvertFlags flags = read_reshard(arguments);
  print_result("resharded", conversion::reshard(flags.path, flags.out, flags.work.options()),
               flags.work.quiet());
  return 0;
}

}  // namespace acc::launcher::commands
