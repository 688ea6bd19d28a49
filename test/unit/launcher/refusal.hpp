#pragma once

#include "acc/base/error.hpp"

#include <string>

namespace acc::launcher::test {

/// What the user is told where `work` refuses bad input, with status 2, or a program that cannot be
/// started; empty where it does not.
template <typename Work>
std::string refusal(Work work) {
  try {
    static_cast<void>(work());
    return "";
  } catch (const Error& error) {
    const bool program = error.code() == Errc::no_program || error.code() == Errc::not_executable;
    return exit_status(error) == 2 || program ? error.what()
                                              : "wrong exit status: " + std::string(error.what());
  }
}

}  // namespace acc::launcher::test
