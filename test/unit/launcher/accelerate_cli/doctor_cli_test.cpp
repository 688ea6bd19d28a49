// SPDX-License-Identifier: Apache-2.0
#include "plan_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace acc::launcher;
using acc::launcher::test::PlanFixture;

namespace {

struct DoctorFixture : PlanFixture {
  DoctorFixture() : PlanFixture(doctor_front_end()) {
    write("bin/acc_doctor", "#!/bin/sh\n", true);
  }

  static bool has(const LaunchPlan& made, const std::vector<std::string>& words) {
    return !std::ranges::search(made.command, words).empty();
  }
};

const std::vector<std::string> kTwoMachines = {
    "--cpu", "--num_machines", "2", "--machine_rank", "1", "--main_process_ip", "head"};

}  // namespace

TEST_CASE_FIXTURE(DoctorFixture, "one worker per machine, whatever number the job has") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"--num_processes", "8"},
        {"--num_processes", "5", "--num_local_processes", "2"},
        {"--max_restarts", "3"}}) {
    std::vector<std::string> arguments = kTwoMachines;
    arguments.insert(arguments.end(), more.begin(), more.end());
    const LaunchPlan made = plan(arguments);
    CHECK(made.layout.num_processes == 2);
    CHECK(made.layout.local_world_size == 1);
    CHECK(made.binding.workers.size() <= 1);
    CHECK(made.supervision.max_restarts == 0);
    CHECK(worker(made, 0).at("RANK") == "1");
    CHECK(worker(made, 0).at("WORLD_SIZE") == "2");
  }
}

TEST_CASE_FIXTURE(DoctorFixture, "the program gets facts that only the launcher has") {
  set_gpus(2, 2);
  const LaunchPlan made = plan({});
  CHECK(made.command.front() == (folder() / "bin" / "acc_doctor").string());
  CHECK_FALSE(has(made, {"--output"}));  // a file is written only on request
  CHECK(has(made, {"--driver", "580.1", "--gpu", "GPU model", "--gpu", "GPU model"}));
  CHECK_FALSE(made.rendezvous.compares_arguments);  // machines with other GPUs are checked too
  CHECK(has(plan({"--output", "a.json"}), {"--output", (folder() / "a.json").string()}));
  CHECK(has(plan({"--doctor_file=/b.json"}), {"--output", "/b.json"}));
}

TEST_CASE_FIXTURE(DoctorFixture, "without a rendezvous each machine soon checks itself alone") {
  const LaunchPlan made = plan(kTwoMachines);
  const std::vector<std::string> alone = {"--alone", "--machine_rank", "1", "--meet", "head:29500"};
  CHECK_FALSE(std::ranges::search(made.unmet_command, alone).empty());
  CHECK(made.rendezvous.join_timeout == std::chrono::seconds(120));
  CHECK(plan({}).unmet_command.empty());
  std::vector<std::string> patient = kTwoMachines;
  patient.insert(patient.end(), {"--rdzv_conf", "timeout=7"});
  CHECK(plan(patient).rendezvous.join_timeout == std::chrono::seconds(7));
}

TEST_CASE_FIXTURE(DoctorFixture, "a program on the command line is rejected") {
  CHECK(refusal({"train"}).find("remove train") != std::string::npos);
}
