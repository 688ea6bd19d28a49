// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"

#include "deepspeed_cli/front_end.hpp"
#include "plan/draft.hpp"

#include <array>

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch deepspeed starts the workers of a training program with the deepspeed launcher's "
    "flags.\n\n"
    "  acclaunch deepspeed [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary or --no_python is given. It gets the\n"
    "argument --local_rank=N unless it is a binary. The machines of the hostfile are started by\n"
    "ssh; with --no_ssh, run the command on each machine. Variables in ~/.deepspeed_env and\n"
    "./.deepspeed_env are passed to the workers (DS_ENV_FILE sets another file name).\n";

constexpr std::string_view kNoElastic =
    "for elastic training use acclaunch torchrun --nnodes MIN:MAX --rdzv-backend c10d";

constexpr std::array kRefused = {
    plugins::RefusedFlag{"deepspeed", "this is a flag of the program; put it after PROGRAM"},
    plugins::RefusedFlag{
        "venv_script",
        "activate the environment before the start: PATH and VIRTUAL_ENV are passed to the "
        "machines"},
    plugins::RefusedFlag{"elastic_training", kNoElastic},
    plugins::RefusedFlag{"min_elastic_nodes", kNoElastic},
    plugins::RefusedFlag{"max_elastic_nodes", kNoElastic},
    plugins::RefusedFlag{"autotuning", "DeepSpeed's autotuner is not supported"},
    plugins::RefusedFlag{
        "save_pid",
        "not supported; send signals to acclaunch itself, whose pid the shell has in $!"},
};

}  // namespace

const FrontEnd& deepspeed_front_end() noexcept {
  static const auto kTable = plan::with_common_rows(flag_rows::kDeepSpeed);
  static const FrontEnd kFrontEnd{{.table = kTable, .refused = kRefused, .abbreviates = true},
                                  "deepspeed",
                                  kUsage,
                                  deepspeed_cli::plan_deepspeed};
  return kFrontEnd;
}

}  // namespace acc::launcher
