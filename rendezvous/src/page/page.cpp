// SPDX-License-Identifier: Apache-2.0
#include "page/page.hpp"

namespace acc::rendezvous {

std::string_view status_page() noexcept {
  return
#include <status_page.inc>  // status.html as a string literal; made by CMake
      ;
}

}  // namespace acc::rendezvous
