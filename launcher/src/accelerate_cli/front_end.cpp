// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"

#include "accelerate_cli/front_end.hpp"
#include "plan/draft.hpp"

#include <array>

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch starts the workers of a distributed training program and ends them together.\n\n"
    "  acclaunch [launch] [flags] PROGRAM [arguments of the program]\n"
    "  acclaunch torchrun [flags] PROGRAM ...    with torchrun's flags\n"
    "  acclaunch deepspeed [flags] PROGRAM ...   with DeepSpeed's flags\n"
    "  acclaunch test [flags]                    runs a built-in program that tests the launch\n"
    "  acclaunch doctor [flags]                  checks the job's machines and their network\n"
    "  acclaunch explain [launch|torchrun|deepspeed] [flags] PROGRAM\n"
    "                                            prints every setting, its value and its "
    "source\n\n"
    "Flags come before PROGRAM and may be spelled with - or _. They override the file that\n"
    "--config_file names.\n";

constexpr std::array kRefused = {
    plugins::RefusedFlag{"tpu*", "TPUs are not supported"},
    plugins::RefusedFlag{"no_tpu_cluster", "TPUs are not supported"},
    plugins::RefusedFlag{"vm", "TPUs are not supported"},
    plugins::RefusedFlag{"env", "TPUs are not supported"},
    plugins::RefusedFlag{"main_training_function", "TPUs are not supported"},
    plugins::RefusedFlag{"use_megatron_lm", "Megatron-LM is not supported"},
    plugins::RefusedFlag{"megatron_lm_*", "Megatron-LM is not supported"},
    plugins::RefusedFlag{"aws_*", "SageMaker is not supported"},
};

}  // namespace

const FrontEnd& accelerate_front_end() noexcept {
  static const auto kTable = [] {
    const auto shared = plugins::settings_table();
    std::vector<plugins::SettingRow> rows(shared.begin(), shared.end());
    rows.insert(rows.end(), flag_rows::kStart.begin(), flag_rows::kStart.end());
    return plan::with_common_rows(rows);
  }();
  static const FrontEnd kFrontEnd{
      {.table = kTable, .refused = kRefused}, "launch", kUsage, accelerate_cli::plan_accelerate};
  return kFrontEnd;
}

}  // namespace acc::launcher
