#include "acc/base/error.hpp"
#include "acc/launcher/face.hpp"

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch test starts a small training program as `acclaunch launch` with the same flags "
    "would\n"
    "start yours, and says what works.\n\n"
    "  acclaunch test [flags]\n";

constexpr std::string_view kProgram = "acc_self_test";

LaunchPlan plan(const Flags& flags, const plugins::Environment& environment,
                const HostFacts& facts) {
  if (!flags.program.empty()) {
    throw Error(Errc::invalid_argument, "acclaunch test starts a program of its own; take out " +
                                            flags.program + ", or say acclaunch launch");
  }
  Flags with_program = flags;
  with_program.program = (facts.executable_directory / kProgram).string();
  LaunchPlan launch = accelerate_face().plan(with_program, environment, facts);
  launch.success = "acclaunch test: all of it works";
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
