// SPDX-License-Identifier: Apache-2.0
// The program that `acclaunch test` starts on every rank. Checks the features that a training
// program relies on.
#include "self_test/checks.hpp"

#include <acc/base/error.hpp>
#include <acc/base/log.hpp>
#include <acc/runtime.hpp>

#include <cstdio>
#include <exception>

namespace {

int run() {
  acc::Runtime runtime = acc::Runtime::from_environment();
  const auto say = [&](const char* text) {
    if (runtime.rank() == 0) {
      std::printf("%s\n", text);
      std::fflush(stdout);
    }
  };
  say(runtime.summary().c_str());
  self_test::check_ranks(runtime);
  say("ok  all ranks can communicate: all_gather, mean, barrier");
  self_test::check_gather(runtime);
  say("ok  weights are gathered completely");
  self_test::check_reduction(runtime);
  say("ok  gradients are averaged over all ranks");
  self_test::check_training(runtime);
  say("ok  the loss falls and is the same on all ranks; weights equal unsharded training's");
  if (runtime.settings().identity.num_nodes == 1) {
    self_test::check_checkpoint(runtime);
    say("ok  a checkpoint is saved and loaded, and training resumes from it");
  } else {
    say("--  checkpoints were not tested: they need a folder that all machines share");
  }
  runtime.barrier();
  return 0;
}

void complain(const std::exception& error) {
  acc::notice_lines(acc::Component::tools, acc::LogLevel::critical,
                    "acc_self_test: ", error.what());
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const acc::Error& error) {
    complain(error);
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    complain(error);
    return 1;
  }
}
