// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan_fixture.hpp"

#include <string>
#include <vector>

namespace acc::launcher::test {

/// A machine for planning tests of the torchrun front end.
class TorchrunFixture : public PlanFixture {
 public:
  TorchrunFixture() : PlanFixture(torchrun_front_end()) {
    write("train.py", "");
    environment["PATH"] = folder().string() + "/bin:/usr/bin:/bin";
    environment["OMP_NUM_THREADS"] = "2";
    write("bin/python3", "#!/bin/sh\n", true);
  }
};

/// Returns the words with the program appended.
inline std::vector<std::string> with_program(std::vector<std::string> words) {
  words.emplace_back("train.py");
  return words;
}

}  // namespace acc::launcher::test
