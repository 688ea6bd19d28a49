#include "acc/launcher/face.hpp"

#include "acc/base/error.hpp"

namespace acc::launcher {
namespace {

LaunchPlan plan(const Flags& /*flags*/, const plugins::Environment& /*environment*/,
                const HostFacts& /*facts*/) {
  throw Error(Errc::invalid_argument, "acclaunch torchrun is not there yet");
}

}  // namespace

const Face& torchrun_face() noexcept {
  static const Face kFace{
      .name = "torchrun",
      .usage = "  acclaunch torchrun [flags] PROGRAM [arguments of the program]\n",
      .table = {},
      .short_flags = {},
      .refused = {},
      .plan = plan};
  return kFace;
}

}  // namespace acc::launcher
