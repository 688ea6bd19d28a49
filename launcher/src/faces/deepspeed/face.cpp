#include "acc/launcher/face.hpp"

#include "acc/base/error.hpp"

namespace acc::launcher {
namespace {

LaunchPlan plan(const Flags& /*flags*/, const plugins::Environment& /*environment*/,
                const HostFacts& /*facts*/) {
  throw Error(Errc::invalid_argument, "acclaunch deepspeed is not there yet");
}

}  // namespace

const Face& deepspeed_face() noexcept {
  static const Face kFace{
      .name = "deepspeed",
      .usage = "  acclaunch deepspeed [flags] PROGRAM [arguments of the program]\n",
      .table = {},
      .short_flags = {},
      .refused = {},
      .plan = plan};
  return kFace;
}

}  // namespace acc::launcher
