// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <string>

namespace acc::checkpoint {

/// A file holds what this library does not read: a dtype, a class, a layout or a form of another
/// program. It may be sound, and is not reported as damaged.
class Unreadable : public Error {
 public:
  explicit Unreadable(const std::string& message)
      : Error(Errc::not_supported, message + " (cannot be read here, and may be sound)") {}
};

}  // namespace acc::checkpoint
