#include "acc/launcher/front_end.hpp"

#include <array>

namespace acc::launcher {

const FrontEnd* find_front_end(std::string_view name) noexcept {
  for (const FrontEnd* front_end : std::array{&accelerate_cli(), &torchrun_cli(), &deepspeed_cli(),
                                              &self_test_cli(), &doctor_cli()}) {
    if (front_end->name == name) {
      return front_end;
    }
  }
  return nullptr;
}

}  // namespace acc::launcher
