// SPDX-License-Identifier: Apache-2.0
// Environment variables recorded under real job managers: test/data/cluster_env/README.md.
#include "support/errors.hpp"
#include "unit/launcher/job_environment_fixture.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace acc::launcher {
namespace {

using test::shown;

struct Process {
  settings::Environment environment;
  HostFacts facts;
};

std::vector<Process> recorded(const std::string& name) {
  std::ifstream file(ACC_TEST_DATA "/cluster_env/" + name + ".json");
  const auto record = nlohmann::json::parse(file);
  std::vector<Process> processes;
  for (const auto& saved : record.at("processes")) {
    Process process;
    process.environment = saved.at("environment").get<settings::Environment>();
    process.facts.hostname = saved.at("hostname");
    process.facts.ancestors = saved.at("ancestors").get<std::vector<std::vector<std::string>>>();
    processes.push_back(std::move(process));
  }
  return processes;
}

/// All processes of a job, one line per process.
std::string places(const std::string& name) {
  std::string text;
  for (const auto& [environment, facts] : recorded(name)) {
    text += (text.empty() ? "" : "\n") + shown(cluster::find_job_environment(environment, facts));
  }
  return text;
}

TEST_CASE("a recorded heterogeneous job is rejected") {
  const auto processes = recorded("het_job");
  REQUIRE(processes.size() == 1);
  CHECK(acc::test::refusal(
            [&] {
              return cluster::find_job_environment(processes[0].environment, processes[0].facts);
            },
            {Errc::not_supported})
            .starts_with("SLURM_HET_SIZE: Slurm job 23 is a heterogeneous job"));
}

TEST_CASE("job environments of recorded jobs") {
  struct Case {
    std::string name, places;
  };
  for (const auto& [name, wanted] : {
           Case{"intelmpi",
                "Intel MPI job 12050000-1974-d263-d460-0600b8dab676: task 0/4, local 0/2, node "
                "0/?; ?:20166 intelmpi-12050000-1974-d263-d460-0600b8dab676\n"
                "Intel MPI job 12050000-1974-d263-d460-0600b8dab676: task 1/4, local 1/2, node "
                "0/?; ?:20166 intelmpi-12050000-1974-d263-d460-0600b8dab676\n"
                "Intel MPI job 12050000-1974-d263-d460-0600b8dab676: task 2/4, local 0/2, node "
                "1/?; ?:20166 intelmpi-12050000-1974-d263-d460-0600b8dab676\n"
                "Intel MPI job 12050000-1974-d263-d460-0600b8dab676: task 3/4, local 1/2, node "
                "1/?; ?:20166 intelmpi-12050000-1974-d263-d460-0600b8dab676"},
           Case{"mpich",
                "MPICH job node0:34727: task 0/4, local 0/2, node 0/?; node0:15950 "
                "mpich-node0-34727\n"
                "MPICH job node0:34727: task 1/4, local 1/2, node 0/?; node0:15950 "
                "mpich-node0-34727\n"
                "MPICH job node0:34727: task 2/4, local 0/2, node 1/?; node0:15950 "
                "mpich-node0-34727\n"
                "MPICH job node0:34727: task 3/4, local 1/2, node 1/?; node0:15950 "
                "mpich-node0-34727"},
           Case{"mpich_in_sbatch",
                "MPICH job node0:40385 in Slurm job 8: task 0/2, local 0/1, node 0/2 of "
                "node0,node1; node0:19040 slurm-8.mpich-node0-40385\n"
                "MPICH job node0:40385 in Slurm job 8: task 1/2, local 0/1, node 1/2 of "
                "node0,node1; node0:19040 slurm-8.mpich-node0-40385"},
           Case{"mpich_one_host",
                "MPICH job node0:43737: task 0/2, local 0/2, node 0/1; 127.0.0.1:21495 "
                "mpich-node0-43737\n"
                "MPICH job node0:43737: task 1/2, local 1/2, node 0/1; 127.0.0.1:21495 "
                "mpich-node0-43737"},
           Case{"openmpi4",
                "Open MPI job 1588527105: task 0/4, local 0/2, node ?/2; 10.77.0.1:19512 "
                "openmpi-1588527105\n"
                "Open MPI job 1588527105: task 1/4, local 1/2, node ?/2; 10.77.0.1:19512 "
                "openmpi-1588527105\n"
                "Open MPI job 1588527105: task 2/4, local 0/2, node ?/2; 10.77.0.1:19512 "
                "openmpi-1588527105\n"
                "Open MPI job 1588527105: task 3/4, local 1/2, node ?/2; 10.77.0.1:19512 "
                "openmpi-1588527105"},
           Case{"openmpi4_in_salloc",
                "Open MPI job 3106734081 in Slurm job 13: task 0/2, local 0/1, node 0/2 of "
                "node0,node1; node0:20934 slurm-13.openmpi-3106734081\n"
                "Open MPI job 3106734081 in Slurm job 13: task 1/2, local 0/1, node 1/2 of "
                "node0,node1; node0:20934 slurm-13.openmpi-3106734081"},
           Case{"openmpi4_in_sbatch",
                "Open MPI job 1599668225 in Slurm job 8: task 0/2, local 0/1, node 0/2 of "
                "node0,node1; node0:15060 slurm-8.openmpi-1599668225\n"
                "Open MPI job 1599668225 in Slurm job 8: task 1/2, local 0/1, node 1/2 of "
                "node0,node1; node0:15060 slurm-8.openmpi-1599668225"},
           Case{"openmpi4_one_host",
                "Open MPI job 1593245697: task 0/2, local 0/2, node 0/1; 127.0.0.1:24912 "
                "openmpi-1593245697\n"
                "Open MPI job 1593245697: task 1/2, local 1/2, node 0/1; 127.0.0.1:24912 "
                "openmpi-1593245697"},
           Case{"openmpi5",
                "Open MPI job prterun-node0-1332@1: task 0/4, local 0/2, node ?/?; node0:18587 "
                "openmpi-prterun-node0-1332-1\n"
                "Open MPI job prterun-node0-1332@1: task 1/4, local 1/2, node ?/?; node0:18587 "
                "openmpi-prterun-node0-1332-1\n"
                "Open MPI job prterun-node0-1332@1: task 2/4, local 0/2, node ?/?; node0:18587 "
                "openmpi-prterun-node0-1332-1\n"
                "Open MPI job prterun-node0-1332@1: task 3/4, local 1/2, node ?/?; node0:18587 "
                "openmpi-prterun-node0-1332-1"},
           Case{"openmpi5_in_salloc",
                "Open MPI job prterun-head-522@1 in Slurm job 12: task 0/2, local 0/1, node 0/2 of "
                "node0,node1; node0:21203 slurm-12.openmpi-prterun-head-522-1\n"
                "Open MPI job prterun-head-522@1 in Slurm job 12: task 1/2, local 0/1, node 1/2 of "
                "node0,node1; node0:21203 slurm-12.openmpi-prterun-head-522-1"},
           Case{"openmpi5_one_host",
                "Open MPI job prterun-node0-1339@1: task 0/2, local 0/2, node 0/1; 127.0.0.1:27063 "
                "openmpi-prterun-node0-1339-1\n"
                "Open MPI job prterun-node0-1339@1: task 1/2, local 1/2, node 0/1; 127.0.0.1:27063 "
                "openmpi-prterun-node0-1339-1"},
           Case{"prterun",
                "PMIx job prterun-node0-1345@1: task 0/?, local ?/?, node ?/?; node0:27481 "
                "pmix-prterun-node0-1345-1\n"
                "PMIx job prterun-node0-1345@1: task 1/?, local ?/?, node ?/?; node0:27481 "
                "pmix-prterun-node0-1345-1\n"
                "PMIx job prterun-node0-1345@1: task 2/?, local ?/?, node ?/?; node0:27481 "
                "pmix-prterun-node0-1345-1\n"
                "PMIx job prterun-node0-1345@1: task 3/?, local ?/?, node ?/?; node0:27481 "
                "pmix-prterun-node0-1345-1"},
           Case{"salloc", "Slurm job 6: script, node ?/2 of node0,node1; node0:17565 slurm-6"},
           Case{"salloc_ntasks",
                "Slurm job 19: script, node ?/2 of node0,node1 with 2,2; node0:15631 slurm-19"},
           Case{"sbatch", "Slurm job 8: script, node 0/2 of node0,node1; node0:18420 slurm-8"},
           Case{"sbatch_in_srun",
                "Slurm job 17: script, node 0/2 of node0,node1 with 1,1; node0:29759 slurm-17"},
           Case{"sbatch_ntasks",
                "Slurm job 9: script, node 0/2 of node0,node1 with 2,2; node0:26339 slurm-9"},
           Case{"srun_array",
                "Slurm job 20, step 0: task 0/1, local 0/1, node 0/1 of node0 with 1; node0:29185 "
                "slurm-20.0"},
           Case{"srun_fewer",
                "Slurm job 11, step 0: task 0/1, local 0/1, node 0/1 of node0 with 1; node0:17846 "
                "slurm-11.0; Slurm job 11, step 0 has 1 of the job's 2 nodes"},
           Case{"srun_gpus_per_task",
                "Slurm job 5, step 0: task 0/4, local 0/2, node 0/2 of node0,node1 with 2,2; "
                "node0:15281 slurm-5.0\n"
                "Slurm job 5, step 0: task 1/4, local 1/2, node 0/2 of node0,node1 with 2,2; "
                "node0:15281 slurm-5.0\n"
                "Slurm job 5, step 0: task 2/4, local 0/2, node 1/2 of node0,node1 with 2,2; "
                "node0:15281 slurm-5.0\n"
                "Slurm job 5, step 0: task 3/4, local 1/2, node 1/2 of node0,node1 with 2,2; "
                "node0:15281 slurm-5.0"},
           Case{"srun_in_sbatch",
                "Slurm job 8, step 0: task 0/2, local 0/1, node 0/2 of node0,node1 with 1,1; "
                "node0:24055 slurm-8.0\n"
                "Slurm job 8, step 0: task 1/2, local 0/1, node 1/2 of node0,node1 with 1,1; "
                "node0:24055 slurm-8.0"},
           Case{"srun_one_task_a_node",
                "Slurm job 1, step 0: task 0/2, local 0/1, node 0/2 of node0,node1 with 1,1; "
                "node0:28554 slurm-1.0\n"
                "Slurm job 1, step 0: task 1/2, local 0/1, node 1/2 of node0,node1 with 1,1; "
                "node0:28554 slurm-1.0"},
           Case{"srun_pmi2",
                "Slurm job 4, step 0: task 0/2, local 0/1, node 0/2 of node0,node1 with 1,1; "
                "node0:22345 slurm-4.0\n"
                "Slurm job 4, step 0: task 1/2, local 0/1, node 1/2 of node0,node1 with 1,1; "
                "node0:22345 slurm-4.0"},
           Case{"srun_two_tasks_a_node",
                "Slurm job 2, step 0: task 0/4, local 0/2, node 0/2 of node0,node1 with 2,2; "
                "node0:21490 slurm-2.0\n"
                "Slurm job 2, step 0: task 1/4, local 1/2, node 0/2 of node0,node1 with 2,2; "
                "node0:21490 slurm-2.0\n"
                "Slurm job 2, step 0: task 2/4, local 0/2, node 1/2 of node0,node1 with 2,2; "
                "node0:21490 slurm-2.0\n"
                "Slurm job 2, step 0: task 3/4, local 1/2, node 1/2 of node0,node1 with 2,2; "
                "node0:21490 slurm-2.0"},
           Case{"srun_uneven",
                "Slurm job 3, step 0: task 0/3, local 0/2, node 0/2 of node0,node1 with 2,1; "
                "node0:29409 slurm-3.0\n"
                "Slurm job 3, step 0: task 1/3, local 1/2, node 0/2 of node0,node1 with 2,1; "
                "node0:29409 slurm-3.0\n"
                "Slurm job 3, step 0: task 2/3, local 0/1, node 1/2 of node0,node1 with 2,1; "
                "node0:29409 slurm-3.0"},
       }) {
    CAPTURE(name);
    CHECK(places(name) == wanted);
  }
}

}  // namespace
}  // namespace acc::launcher
