#pragma once

#include "doctor/facts.hpp"

namespace acc::doctor {

/// All that this machine knows of itself without the others: names, limits, memory, libraries. The
/// fields that the launcher has to tell (`machine`, `gpus`, `driver_version`), `address`, `ports`
/// and `token` are left as they are.
void gather(MachineFacts& facts);

}  // namespace acc::doctor
