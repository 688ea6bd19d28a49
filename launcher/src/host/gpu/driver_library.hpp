// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

namespace acc::launcher::host {

/// A shared library that may be missing, as may its functions.
class DriverLibrary {
 public:
  explicit DriverLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~DriverLibrary() {
    if (handle_ != nullptr) {
      dlclose(handle_);
    }
  }
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

  /// Calls the function `name`. True if it exists and returns 0, which is success in NVML and CUDA.
  /// The argument types must match the C prototype exactly.
  template <typename... Arguments>
  bool call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function =
        handle_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr && function(arguments...) == 0;
  }

 private:
  void* handle_;
};

}  // namespace acc::launcher::host
