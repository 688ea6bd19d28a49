// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"

namespace acc::collectives {

/// Work that is already complete.
class NoWork final : public Work {
 public:
  void wait() override {}
  void wait_released() override {}
};

}  // namespace acc::collectives
