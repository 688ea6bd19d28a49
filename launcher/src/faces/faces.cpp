#include "acc/launcher/face.hpp"

#include <array>

namespace acc::launcher {

const Face* find_face(std::string_view name) noexcept {
  for (const Face* face : std::array{&accelerate_face(), &torchrun_face(), &deepspeed_face(),
                                     &self_test_face(), &doctor_face()}) {
    if (face->name == name) {
      return face;
    }
  }
  return nullptr;
}

}  // namespace acc::launcher
