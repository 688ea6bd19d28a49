#include "start/starter.hpp"

#include "acc/base/error.hpp"

namespace acc::launcher {

int start_machines(const LaunchPlan& /*plan*/, const plugins::Environment& /*environment*/,
                   Guard /*guard*/) {
  throw Error(Errc::internal, "not there yet");
}

}  // namespace acc::launcher
