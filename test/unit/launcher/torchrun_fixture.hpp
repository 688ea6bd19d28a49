#pragma once

#include "plan_fixture.hpp"

#include <string>
#include <vector>

namespace acc::launcher::test {

/// A machine on which the torchrun face plans.
class TorchrunFixture : public PlanFixture {
 public:
  TorchrunFixture() : PlanFixture(torchrun_face()) {
    write("train.py", "");
    environment["PATH"] = folder().string() + "/bin:/usr/bin:/bin";
    environment["OMP_NUM_THREADS"] = "2";
    write("bin/python3", "#!/bin/sh\n", true);
  }
};

/// The same words with the program at the end.
inline std::vector<std::string> with_program(std::vector<std::string> words) {
  words.emplace_back("train.py");
  return words;
}

}  // namespace acc::launcher::test
