// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"

#include "plan/draft.hpp"
#include "torchrun_cli/front_end.hpp"

#include <array>

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch torchrun starts the workers of a distributed training program with torchrun's "
    "flags.\n\n"
    "  acclaunch torchrun [flags] PROGRAM [arguments of the program]\n\n"
    "PROGRAM runs under Python unless it is a binary or --no-python is given. Flags come before\n"
    "PROGRAM; they may be spelled with - or _ and abbreviated. A flag that is not given is read\n"
    "from the variable PET_<FLAG>, with 1 or 0 for a flag without a value. ${local_rank} in an\n"
    "argument is replaced by the worker's local rank. acclaunch exits with the status of the\n"
    "worker that failed.\n";

constexpr std::array kRefused = {
    plugins::RefusedFlag{"logs_specs",
                         "it names a Python object; use --log-dir, --redirects and --tee"},
};

}  // namespace

const FrontEnd& torchrun_front_end() noexcept {
  static const auto kTable = plan::with_common_rows(flag_rows::kTorchrun);
  static const FrontEnd kFrontEnd{
      {.table = kTable, .refused = kRefused, .separator = '-', .abbreviates = true},
      "torchrun",
      kUsage,
      torchrun_cli::plan_torchrun};
  return kFrontEnd;
}

}  // namespace acc::launcher
