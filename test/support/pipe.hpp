// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

namespace acc::test {

/// Both ends of a pipe.
struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  void write(const std::string& bytes) const {
    REQUIRE(::write(in.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  UniqueFd out;
  UniqueFd in;
};

}  // namespace acc::test
