// SPDX-License-Identifier: Apache-2.0
#include "plan/preload.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <string_view>

namespace acc::launcher::plan {
namespace {

/// True for a name such as `torch.nn`. Bytes above 127 belong to letters of other scripts.
bool names_module(std::string_view text) {
  return std::ranges::all_of(split(text, '.'), [](std::string_view word) {
    const auto is_part = [](unsigned char byte) {
      return byte == '_' || byte > 127 || (byte >= '0' && byte <= '9') ||
             ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
    };
    return !word.empty() && !(word.front() >= '0' && word.front() <= '9') &&
           std::ranges::all_of(word, is_part);
  });
}

}  // namespace

PreloadPlan read_preload(const Draft& draft, ProgramKind kind,
                         const std::vector<std::string>& command) {
  const Sourced<std::string> given = draft.given("preload"_key);
  if (given.value.empty() || command.empty()) {
    return {};
  }
  for (const std::string_view name : split(given.value, ',')) {
    if (!names_module(name) || given.value.ends_with(',')) {
      throw bad_value(given, "names of Python modules joined by commas, without spaces");
    }
  }
  if (!is_for_python(draft.flags.program, kind, draft.facts)) {
    throw Error(Errc::config, given.where + " " + given.value + " is for Python programs, and " +
                                  draft.flags.program + " does not run under Python" +
                                  (kind.no_python ? " because of --no_python" : ""));
  }
  return {given.value, {command.begin(), command.begin() + (kind.unbuffered ? 2 : 1)}};
}

}  // namespace acc::launcher::plan
