// SPDX-License-Identifier: Apache-2.0
#include "acc/base/part_path.hpp"

#include <dlfcn.h>

#include <filesystem>

namespace acc {

std::string part_path(const char* library) {
  static const char here = 0;
  Dl_info self{};
  if (dladdr(&here, &self) != 0 && self.dli_fname != nullptr) {
    const auto folder = std::filesystem::path(self.dli_fname).parent_path();
    for (const auto& candidate : {folder / library, folder / "../lib" / library}) {
      if (std::error_code error; std::filesystem::exists(candidate, error)) {
        return candidate.string();
      }
    }
  }
  return library;
}

}  // namespace acc
