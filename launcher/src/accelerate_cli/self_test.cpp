// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/launcher/front_end.hpp"

namespace acc::launcher {
namespace {

constexpr std::string_view kSelfTestUsage =
    "acclaunch test starts a small built-in training program, as `acclaunch launch` with the same\n"
    "flags would start yours, and reports what works.\n\n"
    "  acclaunch test [flags]\n";

constexpr std::string_view kSelfTestProgram = "acc_self_test";

LaunchPlan plan_self_test(const Flags& flags, const settings::Environment& environment,
                          const HostFacts& facts) {
  if (!flags.program.empty()) {
    throw Error(Errc::invalid_argument, "acclaunch test starts its own program; remove " +
                                            flags.program + ", or use acclaunch launch");
  }
  Flags with_program = flags;
  with_program.program = (facts.executable_directory / kSelfTestProgram).string();
  LaunchPlan launch = accelerate_front_end().plan(with_program, environment, facts);
  launch.success = "acclaunch test: everything works";
  return launch;
}

}  // namespace

const FrontEnd& self_test_front_end() noexcept {
  static const FrontEnd kFrontEnd = [] {
    FrontEnd front_end = accelerate_front_end();
    front_end.name = "test";
    front_end.usage = kSelfTestUsage;
    front_end.plan = plan_self_test;
    return front_end;
  }();
  return kFrontEnd;
}

}  // namespace acc::launcher
