// SPDX-License-Identifier: Apache-2.0
// Runs acclaunch like a job manager that merges the output of all machines and that signals every
// process itself.
#include "acc/base/error.hpp"
#include "acc/launcher/front_end.hpp"
#include "job/job.hpp"
#include "job/speaker.hpp"
#include "supervision/guardian.hpp"

#include <chrono>
#include <cstdio>

using namespace acc::launcher;

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);  // argv is overwritten later
  return supervision::run_guarded(argc, argv, [&](supervision::Guard guard) {
    try {
      const FrontEnd& front_end = accelerate_front_end();
      const Flags flags = parse_flags(front_end, arguments);
      const auto environment = acc::settings::current_environment();
      LaunchPlan plan = front_end.plan(flags, environment, detect_host_facts(environment));
      plan.manager.merges_output = true;
      plan.manager.signals_everybody = true;
      return job::run_job(plan, environment, std::move(guard), std::chrono::steady_clock::now());
    } catch (const acc::Error& error) {
      std::fprintf(stderr, "acclaunch: %s\n", error.what());
      return acc::exit_status(error);
    }
  });
}
