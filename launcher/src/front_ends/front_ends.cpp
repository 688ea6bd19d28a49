// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/front_end.hpp"

#include <array>

namespace acc::launcher {

const FrontEnd* find_front_end(std::string_view name) noexcept {
  for (const FrontEnd* front_end :
       std::array{&accelerate_front_end(), &torchrun_front_end(), &deepspeed_front_end(),
                  &self_test_front_end(), &doctor_front_end()}) {
    if (front_end->name == name) {
      return front_end;
    }
  }
  return nullptr;
}

}  // namespace acc::launcher
