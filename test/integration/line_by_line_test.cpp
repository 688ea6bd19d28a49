// SPDX-License-Identifier: Apache-2.0
// Lines of a program that uses the runtime appear as soon as they are written.
#include "support/program.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <string>

using acc::test::Program;

TEST_CASE("a program of the runtime writes line by line through the launcher") {
  for (const std::string workers : {"1", "2"}) {
    CAPTURE(workers);
    Program job({ACC_BIN_DIR "/acclaunch", "torchrun", "--nproc-per-node", workers, "--no-python",
                 ACC_BIN_DIR "/line_probe"},
                {{"ACC_DEVICE", "cpu"}});
    const int count = std::stoi(workers);
    job.wait_for_text("before and after\n", count);
    job.wait_for_text("by iostream\n", count);
    job.wait_for_text("c\n", count);
    job.signal(SIGTERM);
    CHECK(job.wait() == 128 + SIGTERM);
  }
}
