#include "acc/base/error.hpp"
#include "acc/launcher/face.hpp"

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch test starts a small built-in training program, as `acclaunch launch` with the same\n"
    "flags would start yours, and reports what works.\n\n"
    "  acclaunch test [flags]\n";

constexpr std::string_view kProgram = "acc_self_test";

LaunchPlan plan(const Flags& flags, const plugins::Environment& environment,
                const HostFacts& facts) {
  if (!flags.program.empty()) {
    throw Error(Errc::invalid_argument, "acclaunch test starts its own program; remove " +
                                            flags.program + ", or use acclaunch launch");
  }
  Flags with_program = flags;
  with_program.program = (facts.executable_directory / kProgram).string();
  LaunchPlan launch = accelerate_face().plan(with_program, environment, facts);
  launch.success = "acclaunch test: everything works";
  return launch;
}

}  // namespace

const Face& self_test_face() noexcept {
  static const Face kFace = [] {
    Face face = accelerate_face();
    face.name = "test";
    face.usage = kUsage;
    face.plan = plan;
    return face;
  }();
  return kFace;
}

}  // namespace acc::launcher
