// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <filesystem>
#include <string>

namespace acc::checkpoint {

/// A file holds what this library does not read: a dtype, a class, a layout or a form of another
/// program. It may be sound, and is not reported as damaged.
class Unreadable : public Error {
 public:
  explicit Unreadable(const std::string& message)
      : Error(Errc::not_supported, message + " (cannot be read here, and may be sound)") {}
};

/// Throws Error(config) with the message "path: what".
[[noreturn]] inline void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(Errc::config, path.string() + ": " + what);
}

/// The same of a tensor in the file.
[[noreturn]] inline void fail_tensor(const std::filesystem::path& path, const std::string& name,
                                     const std::string& what) {
  fail(path, "tensor '" + name + "': " + what);
}

}  // namespace acc::checkpoint
