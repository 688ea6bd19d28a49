#include "acc/launcher/face.hpp"

#include "faces/deepspeed/planner.hpp"
#include "faces/deepspeed/table.hpp"

#include <array>

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch deepspeed starts the workers of a training program with the deepspeed launcher's "
    "flags.\n\n"
    "  acclaunch deepspeed [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary, or --no_python says so, and gets the\n"
    "argument --local_rank=N unless it is a binary. Several machines in the hostfile are started\n"
    "by ssh, or by hand with --no_ssh on each. Variables in ~/.deepspeed_env and\n"
    "./.deepspeed_env (another name: DS_ENV_FILE) go to the workers.\n";

constexpr std::array kShortFlags = {ShortFlag{'H', "hostfile"}, ShortFlag{'i', "include"},
                                    ShortFlag{'e', "exclude"}, ShortFlag{'q', "quiet"}};

constexpr std::string_view kNoElastic =
    "elastic training is that of acclaunch torchrun: --nnodes MIN:MAX --rdzv-backend c10d";

constexpr std::array kRefused = {
    RefusedFlag{"deepspeed", "it is the program's; put it after PROGRAM"},
    RefusedFlag{"venv_script",
                "activate it before the start: the machines get PATH and VIRTUAL_ENV from here"},
    RefusedFlag{"elastic_training", kNoElastic},
    RefusedFlag{"min_elastic_nodes", kNoElastic},
    RefusedFlag{"max_elastic_nodes", kNoElastic},
    RefusedFlag{"autotuning", "DeepSpeed's autotuner is not supported"},
    RefusedFlag{"save_pid",
                "the process to signal is acclaunch itself; take its pid from the "
                "shell ($!)"},
};

}  // namespace

const Face& deepspeed_face() noexcept {
  static const Face kFace{.name = "deepspeed",
                          .usage = kUsage,
                          .table = deepspeed_table(),
                          .short_flags = kShortFlags,
                          .refused = kRefused,
                          .abbreviates = true,
                          .plan = plan_deepspeed};
  return kFace;
}

}  // namespace acc::launcher
