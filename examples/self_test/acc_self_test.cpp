// What `acclaunch test` starts on every rank: checks what a training program relies on.
#include "checks.hpp"

#include <acc/base/error.hpp>
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
  say(runtime.describe().c_str());
  self_test::check_ranks(runtime);
  say("ok  all ranks hear each other: all_gather, mean, barrier");
  self_test::check_gather(runtime);
  say("ok  weights are gathered whole");
  self_test::check_reduction(runtime);
  say("ok  gradients are averaged over all ranks");
  self_test::check_training(runtime);
  say("ok  the loss falls, alike on all ranks, to the weights of an unsharded training");
  if (runtime.settings().identity.num_nodes == 1) {
    self_test::check_checkpoint(runtime);
    say("ok  a checkpoint is saved, loaded and gone on from");
  } else {
    say("--  checkpoints were left out: they need a folder that all machines see");
  }
  runtime.barrier();
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "acc_self_test: %s\n", error.what());
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "acc_self_test: %s\n", error.what());
    return 1;
  }
}
