// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"
#include "acc/settings/environment.hpp"

#include <array>

namespace acc::settings {

/// Matrix products in fp8 with delayed scaling: the fields of Accelerate's `fp8_config` that have a
/// meaning without its Python libraries. For programs that compute them; the runtime does not read
/// them.
struct Fp8Settings {
  bool e5m2_gradients = true;  ///< fp8_format HYBRID; false: E4M3
  int margin = 0;              ///< scales are divided by 2 to this power
  int amax_history = 1024;     ///< micro-steps whose largest absolute values are remembered
  bool amax_max = false;       ///< scales follow the largest of them; false: the last one
  /// Products in bf16 instead: the forward's, the gradients' of inputs, the gradients' of weights.
  std::array<bool, 3> in_bf16{};

  bool operator==(const Fp8Settings&) const = default;
};

/// Reads the settings from a worker's environment. Throws Error(config) for values that are
/// malformed, Error(not_supported) for those that have no meaning here: fp8_format E5M2,
/// fp8_interval other than 1.
ACC_API Fp8Settings fp8_settings(const Environment& environment);

}  // namespace acc::settings
