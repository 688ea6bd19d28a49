#pragma once

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <string>

namespace acc::test {

/// Returns the message of the Error(config) that a call throws, or "no error" if it throws nothing.
std::string error_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == Errc::config);
    return error.what();
  }
  return "no error";
}

}  // namespace acc::test
