// SPDX-License-Identifier: Apache-2.0
#include "plan_fixture.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>

// Plans of launches under job managers: the same command line works at every site.
namespace acc::launcher {
namespace {

using acc::test::contains;
using settings::Environment;
using test::PlanFixture;
using Words = std::vector<std::string>;

/// Variables of a step on two nodes of a Slurm job.
Environment slurm_step(int tasks_per_node, int node, int local_rank) {
  const std::string tasks = std::to_string(tasks_per_node);
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_NODELIST", "node[0-1]"},
          {"SLURM_STEP_NODELIST", "node[0-1]"},
          {"SLURM_JOB_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_NTASKS", std::to_string(2 * tasks_per_node)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(2 * tasks_per_node)},
          {"SLURM_STEP_TASKS_PER_NODE", tasks + "(x2)"},
          {"SLURM_NODEID", std::to_string(node)},
          {"SLURMD_NODENAME", "node" + std::to_string(node)},
          {"SLURM_PROCID", std::to_string(node * tasks_per_node + local_rank)},
          {"SLURM_LOCALID", std::to_string(local_rank)}};
}

/// Variables of the job's script, on its first node.
Environment slurm_script() {
  return {{"SLURM_JOB_ID", "17"},         {"SLURM_JOB_NODELIST", "node[0-1]"},
          {"SLURM_JOB_NUM_NODES", "2"},   {"SLURM_NTASKS", "8"},
          {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_TASKS_PER_NODE", "4(x2)"},
          {"SLURM_PROCID", "0"},          {"SLURM_NODEID", "0"},
          {"SLURMD_NODENAME", "node0"}};
}

Environment open_mpi(int rank, int size, int local_rank, int local_size, int nodes) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"OMPI_MCA_orte_num_nodes", std::to_string(nodes)},
          {"OMPI_MCA_orte_hnp_uri", "1595670528.0;tcp://10.77.0.1:38669"},
          {"PMIX_NAMESPACE", "1595670529"}};
}

Environment started_by_acclaunch() {
  return {{"ACC_MACHINE_RANK", "1"},       {"ACC_NUM_MACHINES", "2"},
          {"ACC_MAIN_PROCESS_IP", "head"}, {"ACC_MAIN_PROCESS_PORT", "20001"},
          {"ACC_JOB_ID", "an-id"},         {"ACC_LOCAL_PROCESSES", "3,1"}};
}

Environment pytorch_job() {
  return {{"NPROC_PER_NODE", "3"},
          {"MASTER_ADDR", "job-master-0"},
          {"MASTER_PORT", "23456"},
          {"WORLD_SIZE", "2"},
          {"RANK", "1"}};
}

void put(PlanFixture& fixture, const Environment& variables) {
  for (const auto& [name, value] : variables) {
    fixture.environment[name] = value;
  }
}

TEST_CASE("one launcher per machine: machines, rank, address and port come from the job") {
  struct Case {
    Environment variables;
    Words flags;
    int machine_rank;
    int num_machines;
    std::string address;
    int local_world_size;
    int num_processes;
  };
  for (const auto& [variables, flags, rank, machines, address, local, total] : {
           Case{slurm_step(1, 1, 0), {"--num_processes", "4"}, 1, 2, "node0", 2, 4},
           Case{slurm_step(1, 0, 0), {}, 0, 2, "node0", 1, 2},
           Case{slurm_step(1, 1, 0), {"--num_processes=4", "--main_process_ip=a"}, 1, 2, "a", 2, 4},
           Case{open_mpi(1, 2, 0, 1, 2), {"--num_processes", "6"}, 1, 2, "10.77.0.1", 3, 6},
           Case{pytorch_job(), {"--num_processes", "6"}, 1, 2, "job-master-0", 3, 6},
           Case{started_by_acclaunch(), {}, 1, 2, "head", 1, 4},
           Case{started_by_acclaunch(), {"--num_processes", "2"}, 1, 2, "head", 1, 2},
       }) {
    CAPTURE(flags);
    CAPTURE(address);
    PlanFixture fixture;
    put(fixture, variables);
    Words words = flags;
    words.insert(words.end(), {"--cpu", "./train"});
    const LaunchPlan plan = fixture.plan(words);
    CHECK_FALSE(plan.start);
    CHECK_FALSE(plan.layout.rank_slot);
    CHECK(plan.layout.machine_rank == rank);
    CHECK(plan.layout.num_machines == machines);
    CHECK(plan.rendezvous.address == address);
    CHECK(plan.layout.local_world_size == local);
    CHECK(plan.layout.num_processes == total);
    CHECK((plan.rendezvous.run_id == "none") == (address == "job-master-0"));  // no job name
  }
}

TEST_CASE("one launcher per rank supervises one worker") {
  struct Case {
    Environment variables;
    std::string rank, local_rank, local_size, node_rank, nodes, world;
  };
  for (const auto& [variables, rank, local_rank, local_size, node_rank, nodes, world] : {
           Case{slurm_step(2, 1, 1), "3", "1", "2", "1", "2", "4"},
           Case{open_mpi(3, 4, 1, 2, 2), "3", "1", "2", "1", "2", "4"},
           Case{open_mpi(2, 4, 2, 4, 1), "2", "2", "4", "0", "1", "4"},
       }) {
    CAPTURE(rank);
    PlanFixture fixture;
    put(fixture, variables);
    const LaunchPlan plan = fixture.plan({"--cpu", "./train"});
    REQUIRE(plan.layout.rank_slot);
    CHECK(plan.layout.local_world_size == 1);
    CHECK(plan.binding.workers.size() == 1);
    const Environment worker = fixture.worker(plan, first_local_rank(plan.layout));
    CHECK(worker.at("RANK") == rank);
    CHECK(worker.at("LOCAL_RANK") == local_rank);
    CHECK(worker.at("LOCAL_WORLD_SIZE") == local_size);
    CHECK(worker.at("GROUP_RANK") == node_rank);
    CHECK(worker.at("GROUP_WORLD_SIZE") == nodes);
    CHECK(worker.at("WORLD_SIZE") == world);
    CHECK(contains(plan.output.directory, "scratch"));
  }
}

TEST_CASE("a task that sees only one GPU uses it as device 0") {
  PlanFixture fixture;
  put(fixture, slurm_step(2, 1, 1));
  fixture.set_gpus(2, 1);
  fixture.environment["CUDA_VISIBLE_DEVICES"] = "1";
  const Environment own = fixture.worker(fixture.plan({"./train"}), 1);
  CHECK(own.at("LOCAL_RANK") == "0");
  CHECK(own.at("CUDA_VISIBLE_DEVICES") == "1");
  fixture.set_gpus(2, 2);
  fixture.environment.erase("CUDA_VISIBLE_DEVICES");
  const LaunchPlan shared = fixture.plan({"./train"});
  CHECK(fixture.worker(shared, 1).at("LOCAL_RANK") == "1");
  CHECK(shared.binding.workers.front().gpu == 1);
}

TEST_CASE("the script of a job starts the launchers") {
  PlanFixture fixture;
  put(fixture, slurm_script());
  const auto start = fixture.plan({"--cpu", "./train", "--x"}).start;
  REQUIRE(start);
  CHECK(start->means == RemoteLaunchPlan::Means::srun);
  CHECK(start->machines.size() == 2);
  CHECK(start->arguments == Words{"launch", "--cpu", "./train", "--x"});
  CHECK(start->environment == Environment{{"ACC_LOCAL_PROCESSES", "4,4"}});
  CHECK(fixture.plan({"--cpu", "--num_processes=2", "./train"}).start->environment.empty());
  // A job of one machine starts no launchers.
  const LaunchPlan alone =
      fixture.plan({"--cpu", "--num_machines=1", "--num_processes=2", "./train"});
  CHECK_FALSE(alone.start);
  CHECK(alone.layout.local_world_size == 2);
  // Two launchers in one script on one machine may use different ports.
  fixture.environment["SLURM_JOB_NODELIST"] = "node0";
  fixture.environment["SLURM_JOB_NUM_NODES"] = "1";
  fixture.environment["SLURM_TASKS_PER_NODE"] = "8";
  const LaunchPlan here = fixture.plan({"--cpu", "./train"});
  CHECK(here.rendezvous.port >= 15'000);
  CHECK_FALSE(here.rendezvous.port_was_given);
  CHECK(here.layout.local_world_size == 8);
}

TEST_CASE("the job overrides the file, and flags override the job") {
  PlanFixture fixture;
  put(fixture, slurm_step(1, 1, 0));
  fixture.write("c.yaml",
                "distributed_type: MULTI_CPU\nnum_machines: 4\nmachine_rank: 0\nnum_processes: 4\n"
                "main_process_ip: elsewhere\nmain_process_port: 1234\n");
  const LaunchPlan plan = fixture.plan({"--config_file", (fixture.folder() / "c.yaml").string(),
                                        "--main_process_port", "4321", "./train"});
  CHECK(plan.layout.machine_rank == 1);
  CHECK(plan.layout.num_machines == 2);
  CHECK(plan.layout.local_world_size == 2);
  CHECK(plan.rendezvous.address == "node0");
  CHECK(plan.rendezvous.port == 4321);
  CHECK(settings::describe(plan.settings.source("machine_rank"_key)) == "SLURM_NODEID");
}

TEST_CASE("the job is ignored if the user numbers the machines, or in compatibility mode") {
  PlanFixture fixture;
  put(fixture, slurm_step(1, 1, 0));
  const LaunchPlan own = fixture.plan({"--cpu", "--num_machines=3", "--machine_rank=2",
                                       "--num_processes=3", "--main_process_ip=a", "./train"});
  CHECK(own.layout.machine_rank == 2);
  CHECK(own.layout.num_machines == 3);
  const LaunchPlan alone = fixture.plan({"--cpu", "--num_machines", "1", "./train"});
  CHECK(alone.layout.num_machines == 1);
  const LaunchPlan accelerate = fixture.plan({"--compat=accelerate", "--cpu", "./train"});
  CHECK(accelerate.layout.num_machines == 1);
  CHECK(accelerate.manager.name.empty());
}

TEST_CASE("counts that contradict the job are reported with their variables") {
  struct Case {
    Environment variables;
    Words words;
    Words parts;
  };
  for (const auto& [variables, words, parts] : {
           Case{slurm_step(1, 1, 0),
                {"--num_machines", "4", "--num_processes", "4"},
                {"--num_machines 4, but", "2 machines (SLURM_STEP_NODELIST"}},
           Case{slurm_step(4, 1, 0),
                {"--num_processes", "4"},
                {"8 tasks on 2 machines", "but --num_processes is 4"}},
           Case{slurm_script(), {"--num_machines", "3"}, {"--num_machines 3, but", "2 machines"}},
           Case{slurm_step(1, 0, 0), {"--num_processes", "3"}, {"must be a multiple of"}},
           Case{{{"ACC_MACHINE_RANK", "0"},
                 {"ACC_NUM_MACHINES", "2"},
                 {"ACC_MAIN_PROCESS_IP", "head"},
                 {"ACC_MAIN_PROCESS_PORT", "1"},
                 {"ACC_JOB_ID", "id"},
                 {"ACC_LOCAL_PROCESSES", "1,x"}},
                {},
                {"ACC_LOCAL_PROCESSES must be numbers"}},
           Case{{{"ACC_MACHINE_RANK", "0"}}, {}, {"ACC_MACHINE_RANK needs ACC_NUM_MACHINES"}},
           Case{{{"SLURM_JOB_ID", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "0"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_STEP_NUM_NODES", "0"}},
                {},
                {"SLURM_STEP_NUM_NODES must be a number of at least 1, got \"0\""}},
           Case{{{"SLURM_JOB_ID", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_PROCID", "3"},
                 {"SLURM_NODEID", "3"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}},
                {},
                {"SLURM_NODEID is 3, but SLURM_STEP_TASKS_PER_NODE counts 2 machines"}},
       }) {
    PlanFixture fixture;
    put(fixture, variables);
    Words all = words;
    all.insert(all.end(), {"--cpu", "./train"});
    const std::string message = fixture.refusal(all);
    for (const std::string& part : parts) {
      CAPTURE(message);
      CHECK(contains(message, part));
    }
  }
}

TEST_CASE("the machines of a hostfile are started by ssh, each with its own variables") {
  struct Case {
    std::string hostfile;
    Words words;
    std::size_t machines;
    std::string address, workers;  ///< "": each machine decides
  };
  for (const auto& [hostfile, words, machines, address, workers] : {
           Case{"a slots=2\nme@b slots=2\n", {}, 2, "a", "2,2"},
           Case{"a slots=3\nb slots=1\n", {}, 2, "a", "3,1"},
           Case{"a slots=3\nb slots=1\n", {"--num_processes=2"}, 2, "a", ""},
           Case{"me@a\nb\nc\n", {"--num_processes=6"}, 3, "a", ""},
           Case{"a\nb\nc\n", {"--num_processes=6", "--num_machines=2"}, 2, "a", ""},
           Case{"localhost\nb\n", {"--num_processes=2", "--main_process_ip=x"}, 2, "x", ""},
       }) {
    CAPTURE(hostfile);
    PlanFixture fixture;
    fixture.write("hosts", hostfile);
    Words all = words;
    all.insert(all.end(), {"--hostfile", "hosts", "--shutdown_timeout", "70", "--cpu", "./train"});
    const LaunchPlan plan = fixture.plan(all);
    const auto& start = plan.start;
    REQUIRE(start);
    CHECK(plan.supervision.shutdown_timeout == std::chrono::seconds(70));
    CHECK(start->machines.size() == machines);
    CHECK((hostfile.find("me@") == std::string::npos) ==
          std::ranges::none_of(start->machines, [](const RemoteMachine& machine) {
            return machine.name.starts_with("me@");
          }));
    CHECK(start->environment.at("ACC_NUM_MACHINES") == std::to_string(machines));
    CHECK(start->environment.at("ACC_MAIN_PROCESS_IP") == address);
    const auto found = start->environment.find("ACC_LOCAL_PROCESSES");
    CHECK((found == start->environment.end() ? "" : found->second) == workers);
    // A launcher that was started this way does not start others.
    PlanFixture there;
    there.environment["ACC_MACHINE_RANK"] = "1";
    put(there, start->environment);
    CHECK_FALSE(there.plan(all).start);
    CHECK(there.plan(all).layout.machine_rank == 1);
  }
  PlanFixture fixture;
  fixture.write("hosts", "localhost\nb\n");
  fixture.write("empty", "# nobody\n");
  fixture.write("bad", "a slots=2\nb slots=none\nc d e\n");
  struct Bad {
    std::string file, part;
  };
  for (const auto& [file, part] : {
           Bad{"hosts", "hosts:1: machine 0 is localhost"},
           Bad{"empty", "lists no host"},
           Bad{"bad", "bad:2: expected"},
           Bad{"bad", "bad:3: expected"},
           Bad{"none", "cannot read"},
       }) {
    const std::string message =
        fixture.refusal({"--hostfile", file, "--cpu", "--num_processes=2", "./train"});
    CAPTURE(message);
    CHECK(contains(message, part));
  }
  CHECK(contains(fixture.refusal({"--hostfile", "hosts", "--machine_rank=0", "./train"}),
                 "--hostfile starts all machines from here, but --machine_rank"));
}

}  // namespace
}  // namespace acc::launcher
