// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace acc {

/// What is checked of an untrusted JSON text before it is parsed. A callback of the parser could
/// check it too, but the parser then searches all members of an object for each one that it adds.
struct JsonForm {
  int depth = 0;                          ///< largest number of objects and lists within each other
  std::optional<std::string> twice = {};  ///< a name that the outermost object has twice
};
/// Returns the form of a text, up to the first error in it.
JsonForm json_form(std::string_view text);

}  // namespace acc
