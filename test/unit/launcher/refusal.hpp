#pragma once

#include "acc/base/error.hpp"

#include <string>

namespace acc::launcher::test {

/// Returns the error message of `work` for invalid input (exit status 2) or a program that cannot
/// be started; empty if it does not throw.
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
