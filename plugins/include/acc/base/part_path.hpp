// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace acc {

/// Path of a part of the runtime that is a library of its own, loaded when it is needed: in the
/// folder of the library or program that contains this function, or in lib/ next to a program's
/// bin/; else the bare name, which the dynamic loader searches.
std::string part_path(const char* library);

}  // namespace acc
