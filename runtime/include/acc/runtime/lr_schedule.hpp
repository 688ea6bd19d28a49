#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <functional>

namespace acc {

/// The learning rate of a step: `step` counts the optimizer steps made so far, `base` is what the
/// optimizer, or one of its groups, was made with. A pure function of its arguments.
using LrSchedule = std::function<double(std::int64_t step, double base)>;

}  // namespace acc
