// SPDX-License-Identifier: Apache-2.0
#include "commands/env/facts.hpp"

#include <array>

namespace acc::launcher::commands {

Facts build_facts() {
#ifdef __clang__
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return {{"acclaunch version", ACC_VERSION},
          {"Compiler", compiler + ", " ACC_BUILD_TYPE},
          {"Built against", ACC_BUILT_AGAINST}};
}

}  // namespace acc::launcher::commands
