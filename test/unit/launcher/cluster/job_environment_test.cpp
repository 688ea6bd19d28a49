// SPDX-License-Identifier: Apache-2.0
// Variables that job managers set according to their documentation.
// recorded_job_environment_test.cpp has variables recorded from real ones.
#include "cluster/job_variables.hpp"
#include "support/errors.hpp"
#include "unit/launcher/job_environment_fixture.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

namespace acc::launcher {
namespace {

using acc::test::refusal;
using settings::Environment;
using test::shown;

HostFacts host(const std::string& name, const std::string& domain_name = "") {
  HostFacts facts;
  facts.hostname = name;
  facts.domain_name = domain_name;
  return facts;
}

/// A file with host names, removed at the end.
class HostsFile {
 public:
  explicit HostsFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("acc_hosts_" + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~HostsFile() { std::filesystem::remove(path_); }
  HostsFile(const HostsFile&) = delete;
  HostsFile& operator=(const HostsFile&) = delete;

  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) {
    environment[name] = value;
  }
  return environment;
}

const Environment kStep = {{"SLURM_JOB_ID", "17"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_JOB_NODELIST", "n[1-4]"},
                           {"SLURM_STEP_NODELIST", "n[2-3]"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NUM_TASKS", "3"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "0"},
                           {"SLURMD_NODENAME", "n2"}};
const std::string kStepPlace =
    "Slurm job 17, step 2: task 1/3, local 1/2, node 0/2 of n2,n3 with 2,1; n2:16698 slurm-17.2; "
    "Slurm job 17, step 2 has 2 of the job's 4 nodes";
const Environment kPod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};

struct ManagerCase {
  std::string what;
  Environment environment;
  HostFacts facts;
  std::string place;
};

void check(const std::vector<ManagerCase>& cases) {
  for (const auto& [what, environment, facts, place] : cases) {
    CAPTURE(what);
    CHECK(shown(cluster::find_job_environment(environment, facts)) == place);
  }
}

TEST_CASE("no job manager, or a process below a launcher") {
  check({{"terminal", {{"HOME", "/root"}}, host("a"), "nothing"},
         {"worker", with(kStep, {{"LOCAL_RANK", "0"}}), host("n2"), "nothing"},
         {"half of PyTorchJob", {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, host("a"), "nothing"},
         {"half of Open MPI", {{"OMPI_COMM_WORLD_SIZE", "2"}}, host("a"), "nothing"},
         {"half of PBS", {{"PBS_JOBID", "1"}}, host("a"), "nothing"},
         {"a pod", kPod, host("a"), "nothing"},
         {"an index outside of a pod", {{"JOB_COMPLETION_INDEX", "1"}}, host("j-1"), "nothing"}});
}

TEST_CASE("Slurm's steps, scripts and shells") {
  const std::string script = "Slurm job 17: script, node ?/4 of n1,n2,n3,n4; n1:29759 slurm-17";
  Environment bare = kStep;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
                           "SLURM_STEP_TASKS_PER_NODE"}) {
    bare.erase(name);
  }
  check(
      {{"step", kStep, host("other"), kStepPlace},
       {"requeued", with(kStep, {{"SLURM_RESTART_COUNT", "1"}}), host("n2"),
        "Slurm job 17, step 2: task 1/3, local 1/2, node 0/2 of n2,n3 with 2,1; n2:16698 "
        "slurm-17.2.r1; Slurm job 17, step 2 has 2 of the job's 4 nodes"},
       {"the job's counts", with(bare, {{"SLURMD_NODENAME", "n1"}}), host("n1"),
        "Slurm job 17, step 2: task 1/8, local 1/?, node 0/4 of n1,n2,n3,n4; n1:16698 slurm-17.2"},
       {"batch has a rank, but no step",
        {{"SLURM_JOB_ID", "17"},
         {"SLURM_JOB_NODELIST", "n[1-4]"},
         {"SLURM_TASKS_PER_NODE", "1(x4)"},
         {"SLURM_PROCID", "0"},
         {"SLURMD_NODENAME", "n1"}},
        host("n1"),
        "Slurm job 17: script, node 0/4 of n1,n2,n3,n4; n1:29759 slurm-17"},
       {"tasks were asked for",
        {{"SLURM_JOB_ID", "17"},
         {"SLURM_NODELIST", "n[1-2]"},
         {"SLURM_NTASKS_PER_NODE", "2"},
         {"SLURM_TASKS_PER_NODE", "2(x2)"},
         {"SLURM_RESTART_COUNT", "2"}},
        host("n1"),
        "Slurm job 17: script, node ?/2 of n1,n2 with 2,2; n1:29759 slurm-17.r2"}});
  for (const std::string step :
       {"4294967290", "4294967291", "4294967292", "4294967293", "4294967294"}) {
    CAPTURE(step);
    CHECK(shown(cluster::find_job_environment(
              with(kStep, {{"SLURM_STEP_ID", step}, {"SLURM_NTASKS", ""}}), host("n2"))) == script);
  }
  HostFacts facts = host("n2");
  facts.ancestors = {{"bash", "script"}, {"slurmstepd: [17.batch]"}};
  CHECK_FALSE(cluster::find_job_environment(with(kStep, {{"SLURM_NTASKS", ""}}), facts)->is_task);
  facts.ancestors = {{"bash", "script"}, {"slurmstepd: [17.2]"}};
  CHECK(shown(cluster::find_job_environment(kStep, facts)) == kStepPlace);
}

TEST_CASE("contradictory variables of Slurm") {
  struct Bad {
    Environment changed;
    std::string message;
  };
  for (const auto& [changed, message] : {
           Bad{{{"SLURM_STEP_NODELIST", "n[2-3],x"},
                {"SLURM_STEP_NUM_NODES", "3"},
                {"SLURM_STEP_TASKS_PER_NODE", "2,1,0"}},
               "SLURM_STEP_NODELIST (n[2-3],x) lists x, which SLURM_JOB_NODELIST (n[1-4]) does not "
               "list"},
           Bad{{{"SLURM_NODEID", "2"}}, "SLURM_NODEID is 2, but SLURM_STEP_NODELIST names 2 hosts"},
           Bad{{{"SLURMD_NODENAME", "n3"}},
               "SLURMD_NODENAME is n3, but SLURM_STEP_NODELIST names n2 for SLURM_NODEID 0"},
           Bad{{{"SLURM_STEP_NUM_NODES", "3"}},
               "SLURM_STEP_NUM_NODES is 3, but SLURM_STEP_NODELIST names 2 hosts"},
           Bad{{{"SLURM_STEP_NUM_TASKS", "4"}},
               "SLURM_STEP_NUM_TASKS is 4, but SLURM_STEP_TASKS_PER_NODE sums up to 3"},
           Bad{{{"SLURM_STEP_TASKS_PER_NODE", "3"}},
               "SLURM_STEP_TASKS_PER_NODE has 1 numbers, but SLURM_STEP_NODELIST names 2 hosts"},
           Bad{{{"SLURM_LOCALID", "2"}},
               "SLURM_LOCALID is 2, but SLURM_STEP_TASKS_PER_NODE has 2 for this node"},
           Bad{{{"SLURM_PROCID", "3"}}, "SLURM_PROCID is 3, but SLURM_STEP_NUM_TASKS is 3"},
           Bad{{{"SLURM_NODEID", "5"}, {"SLURM_PROCID", "9"}},
               "SLURM_NODEID is 5, but SLURM_STEP_NODELIST names 2 hosts\n"
               "SLURM_PROCID is 9, but SLURM_STEP_NUM_TASKS is 3"},
           Bad{{{"SLURM_PROCID", "-1"}}, "SLURM_PROCID must be a number of at least 0, got \"-1\""},
           Bad{{{"SLURM_NODEID", "99999999999"}},
               "SLURM_NODEID must be a number of at least 0, got \"99999999999\""},
           Bad{{{"SLURM_STEP_ID", "batch"}},
               "SLURM_STEP_ID must be a number of at least 0, got \"batch\""},
           Bad{{{"SLURM_JOB_ID", "x"}}, "SLURM_JOB_ID must be a number of at least 0, got \"x\""},
           Bad{{{"SLURM_STEP_NODELIST", "n[2-"}},
               "SLURM_STEP_NODELIST \"n[2-\": expected a number at character 5, got the end of the "
               "list"},
           Bad{{{"SLURM_STEP_TASKS_PER_NODE", "2x"}},
               "SLURM_STEP_TASKS_PER_NODE \"2x\": expected \",\" or \"(\" at character 2, got "
               "\"x\""},
           Bad{{{"SLURM_HET_SIZE", "2"}},
               "SLURM_HET_SIZE: Slurm job 17 is a heterogeneous job, whose components have "
               "separate node lists; acclaunch supports jobs and steps of one component only"},
           Bad{{{"SLURM_STEP_ID", ""}, {"SLURM_JOB_NUM_NODES", "3"}},
               "SLURM_JOB_NUM_NODES is 3, but SLURM_JOB_NODELIST names 4 hosts"},
       }) {
    CAPTURE(message);
    CHECK(refusal(
              [&, &bad = changed] {
                return cluster::find_job_environment(with(kStep, bad), host("n2"));
              },
              {Errc::config, Errc::not_supported}) == message);
  }
}

TEST_CASE("mpirun, alone and in an allocation") {
  const Environment open_mpi = {
      {"OMPI_COMM_WORLD_RANK", "0"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"OMPI_MCA_orte_num_nodes", "2"},
      {"OMPI_MCA_ess_base_jobid", "77"},
      {"OMPI_MCA_orte_hnp_uri", "76.0;tcp://10.77.0.1,10.1.1.1:4000;tcp6://[fd00::1]:4001"},
      {"OMPI_MCA_orte_local_daemon_uri",
       "76.0;tcp://10.77.0.1,10.1.1.1:4000;tcp6://[fd00::1]:4001"}};
  const Environment slurm = {{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "n[1-2]"}};
  const Environment lsf = {{"LSB_JOBID", "17"}, {"LSB_HOSTS", "n1 n1 n2 n2"}};
  const Environment elsewhere =
      with(open_mpi, {{"OMPI_MCA_orte_local_daemon_uri", "76.1;tcp://10.77.0.2:4000"}});
  check(
      {{"alone", open_mpi, host("n1"),
        "Open MPI job 77: task 0/4, local 0/2, node ?/2; 10.77.0.1:20033 openmpi-77"},
       {"IPv6 alone",
        with(open_mpi, {{"OMPI_MCA_orte_hnp_uri", "76.0;tcp6://[fd00::1]:1"},
                        {"OMPI_MCA_orte_local_daemon_uri", ""}}),
        host("n1"), "Open MPI job 77: task 0/4, local 0/2, node ?/2; fd00::1:20033 openmpi-77"},
       {"rank 0 elsewhere", elsewhere, host("n2"),
        "Open MPI job 77: task 0/4, local 0/2, node ?/2; ?:20033 openmpi-77; Open MPI runs on "
        "10.77.0.1, where the other ranks expect rank 0, but has placed rank 0 on another machine; "
        "pass its address with --main_process_ip"},
       {"in Slurm, from a login node", with(elsewhere, slurm), host("n1"),
        "Open MPI job 77 in Slurm job 17: task 0/4, local 0/2, node 0/2 of n1,n2; n1:20033 "
        "slurm-17.openmpi-77"},
       {"in LSF", with(open_mpi, lsf), host("n2.site"),
        "Open MPI job 77 in LSF job 17: task 0/4, local 0/2, node 1/2 of n1,n2; ?:20033 "
        "lsf-17.openmpi-77; Open MPI has placed rank 0 on n2.site, which is not the first host "
        "of LSB_HOSTS, where the other ranks expect it; pass --main_process_ip"},
       {"on fewer hosts", with(with(open_mpi, slurm), {{"SLURM_JOB_NODELIST", "n[1-3]"}}),
        host("n1"),
        "Open MPI job 77 in Slurm job 17: task 0/4, local 0/2, node ?/2; n1:20033 "
        "slurm-17.openmpi-77"},
       {"on one of them", with(with(open_mpi, slurm), {{"OMPI_COMM_WORLD_SIZE", "2"}}), host("n1"),
        "Open MPI job 77 in Slurm job 17: task 0/2, local 0/2, node 0/1; 127.0.0.1:20033 "
        "slurm-17.openmpi-77"},
       {"PMIx of srun is Slurm's",
        with(kStep, {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.17.2"}}), host("n2"),
        kStepPlace},
       {"and so are Cray's variables of srun",
        with(kStep, {{"PALS_APID", "a"}, {"PALS_RANKID", "1"}}), host("n2"), kStepPlace}});
  CHECK(refusal([&] {
          return cluster::find_job_environment(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "4"}}),
                                               host("n1"));
        }) == "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4");
  CHECK(refusal([&] {
          return cluster::find_job_environment(
              with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}), host("n1"));
        }) == "OMPI_COMM_WORLD_LOCAL_SIZE is 5, but OMPI_COMM_WORLD_SIZE is 4");
}

TEST_CASE("PALS, Flux and jsrun") {
  const Environment jsrun = {{"JSM_NAMESPACE_RANK", "2"},
                             {"JSM_NAMESPACE_SIZE", "4"},
                             {"JSM_NAMESPACE_LOCAL_RANK", "0"},
                             {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                             {"OMPI_COMM_WORLD_RANK", "2"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"LSB_JOBID", "17"}};
  check({{"PALS",
          {{"PALS_APID", "b-1"},
           {"PALS_RANKID", "3"},
           {"PMI_SIZE", "4"},
           {"PMI_RANK", "3"},
           {"PALS_LOCAL_RANKID", "1"},
           {"PMI_LOCAL_SIZE", "2"},
           {"PALS_NODEID", "1"}},
          host("x2"),
          "Cray PALS job b-1: task 3/4, local 1/2, node 1/?; ?:26026 pals-b-1"},
         {"Flux",
          {{"FLUX_JOB_ID", "f2Vx"},
           {"FLUX_TASK_RANK", "3"},
           {"FLUX_JOB_SIZE", "4"},
           {"FLUX_TASK_LOCAL_ID", "1"},
           {"FLUX_JOB_NNODES", "2"}},
          host("x"),
          "Flux job f2Vx: task 3/4, local 1/?, node ?/2; ?:25257 flux-f2Vx"},
         {"Flux on one node",
          {{"FLUX_JOB_ID", "f2Vx"},
           {"FLUX_TASK_RANK", "1"},
           {"FLUX_JOB_SIZE", "2"},
           {"FLUX_TASK_LOCAL_ID", "1"},
           {"FLUX_JOB_NNODES", "1"}},
          host("x"),
          "Flux job f2Vx: task 1/2, local 1/2, node 0/1; 127.0.0.1:25257 flux-f2Vx"},
         {"jsrun, with a separate launch host",
          with(jsrun, {{"LSB_MCPU_HOSTS", "batch1 1 a01 42 a02 42"}}), host("a02"),
          "jsrun in LSF job 17: task 2/4, local 0/2, node 1/2 of a01,a02; a01:29759 lsf-17"},
         {"jsrun, with none", with(jsrun, {{"LSB_MCPU_HOSTS", "a01 42 a02 42"}}), host("a02"),
          "jsrun in LSF job 17: task 2/4, local 0/2, node 1/2 of a01,a02; a01:29759 lsf-17"}});
}

TEST_CASE("job scripts of LSF and PBS") {
  const HostsFile file("n2\nn2\nn1\nn1\nn2\n");
  const Environment pbs = {{"PBS_JOBID", "17.server"}, {"PBS_NODEFILE", file.path()}};
  check({{"LSF",
          {{"LSB_JOBID", "17"}, {"LSB_MCPU_HOSTS", "n1 4 n2 2"}},
          host("n1"),
          "LSF job 17: script, node 0/2 of n1,n2 with 4,2; n1:29759 lsf-17"},
         {"an array's",
          {{"LSB_JOBID", "17"}, {"LSB_JOBINDEX", "1"}, {"LSB_HOSTS", "n1"}},
          host("n1"),
          "LSF job 17.1: script, node 0/1 of n1 with 1; n1:20411 lsf-17.1"},
         {"not an array's",
          {{"LSB_JOBID", "17"}, {"LSB_JOBINDEX", "0"}, {"LSB_HOSTS", "n1"}},
          host("n1"),
          "LSF job 17: script, node 0/1 of n1 with 1; n1:29759 lsf-17"},
         {"a file of ranks",
          {{"LSB_JOBID", "17"}, {"LSB_DJOB_RANKFILE", file.path()}},
          host("n1"),
          "LSF job 17: script, node ?/2 of n2,n1 with 3,2; n2:29759 lsf-17"},
         {"PBS", pbs, host("n2"),
          "PBS job 17.server: script, node 0/2 of n2,n1 with 3,2; n2:29759 pbs-17.server"},
         {"PBS on its first node", with(pbs, {{"PBS_NODENUM", "0"}}), host("n2"),
          "PBS job 17.server: script, node 0/2 of n2,n1 with 3,2; n2:29759 pbs-17.server"},
         {"pbsdsh", with(pbs, {{"PBS_NODENUM", "1"}}), host("n1"),
          "PBS job 17.server: task ?/?, local ?/?, node 1/2 of n2,n1 with 3,2; n2:29759 "
          "pbs-17.server"}});
  CHECK(refusal([&] {
          return cluster::find_job_environment({{"LSB_JOBID", "17"}, {"LSB_MCPU_HOSTS", "n1 4 n2"}},
                                               host("n1"));
        }) ==
        "LSB_MCPU_HOSTS must be hosts and numbers of slots, as in h1 4 h2 4, got \"n1 4 n2\"");
  CHECK(refusal([&] {
          return cluster::find_job_environment(with(pbs, {{"PBS_NODENUM", "2"}}), host("n1"));
        }) == "PBS_NODENUM is 2, but PBS_NODEFILE has 2 hosts");
  CHECK(
      refusal([&] {
        return cluster::find_job_environment(with(pbs, {{"PBS_NODEFILE", "/nowhere"}}), host("n1"));
      }) == "PBS_NODEFILE must name a file with one host per line, got \"/nowhere\"");
}

TEST_CASE("Kubernetes pods") {
  const Environment pytorch_job = {
      {"MASTER_ADDR", "t-master-0"}, {"MASTER_PORT", "23456"}, {"WORLD_SIZE", "3"}, {"RANK", "2"}};
  const Environment torchrun = {{"PET_NNODES", "2"},
                                {"PET_NODE_RANK", "1"},
                                {"PET_MASTER_ADDR", "t-node-0-0"},
                                {"PET_MASTER_PORT", "29400"}};
  const Environment pod_1 = with(kPod, {{"JOB_COMPLETION_INDEX", "1"}});
  check({{"Indexed Job", pod_1, host("t-1", "t-1.svc.ns.svc.cluster.local"),
          "Kubernetes Job t: task ?/?, local ?/?, node 1/?; t-0.svc.ns.svc.cluster.local:29161 "
          "kubernetes-t"},
         {"without a service", pod_1, host("t-1"),
          "Kubernetes Job t: task ?/?, local ?/?, node 1/?; ?:29161 kubernetes-t"},
         {"on its host's network", pod_1, host("machine"),
          "Kubernetes Job: task ?/?, local ?/?, node 1/?; ?:? "},
         {"JobSet", with(pod_1, {{"JOBSET_RESTART_ATTEMPT", "2"}}),
          host("set-w-0-1", "set-w-0-1.set"),
          "Kubernetes Job set-w-0: task ?/?, local ?/?, node 1/?; set-w-0-0.set:16106 "
          "kubernetes-set-w-0.r2"},
         {"PyTorchJob", with(pytorch_job, kPod), host("t-worker-1"),
          "PyTorchJob t: task ?/?, local ?/?, node 2/3; t-master-0:23456 pytorchjob-t"},
         {"in a terminal", pytorch_job, host("a"), "nothing"},
         {"a cloud's", with(pytorch_job, {{"NPROC_PER_NODE", "8"}}), host("algo-2"),
          "PyTorchJob: task ?/?, local ?/?, node 2/3; t-master-0:23456 "},
         {"torchrun's style", with(with(pytorch_job, torchrun), kPod), host("t-node-0-1"),
          "PyTorchJob t: task ?/?, local ?/?, node 1/2; t-node-0-0:29400 pytorchjob-t"},
         {"elastic", with(torchrun, {{"PET_NNODES", "1:2"}}), host("x"),
          "PyTorchJob: task ?/?, local ?/?, node 1/?; t-node-0-0:29400 "}});
  struct Bad {
    Environment changed;
    std::string message;
  };
  for (const auto& [changed, message] : {
           Bad{{{"RANK", "3"}}, "RANK is 3, but WORLD_SIZE is 3"},
           Bad{{{"MASTER_PORT", "65536"}},
               "MASTER_PORT must be a port from 1 to 65535, got \"65536\""},
           Bad{with(torchrun, {{"PET_NNODES", "2:1"}}),
               "PET_NNODES must be N or MIN:MAX, got \"2:1\""},
           Bad{with(torchrun, {{"PET_NNODES", "two"}}),
               "PET_NNODES must be a number of at least 0, got \"two\""},
       }) {
    CAPTURE(message);
    CHECK(refusal([&, &bad = changed] {
            return cluster::find_job_environment(with(with(pytorch_job, kPod), bad), host("x"));
          }) == message);
  }
}

TEST_CASE("launchers that acclaunch has started") {
  const Environment own = {{"ACC_MACHINE_RANK", "1"},      {"ACC_NUM_MACHINES", "2"},
                           {"ACC_MAIN_PROCESS_IP", "n1"},  {"ACC_MAIN_PROCESS_PORT", "4000"},
                           {"ACC_LOCAL_PROCESSES", "8,4"}, {"ACC_JOB_ID", "j7"}};
  check({{"inside of Slurm", with(kStep, own), host("n2"),
          "acclaunch job j7: task ?/?, local ?/?, node 1/2 with 8,4; n1:4000 j7"}});
  struct Bad {
    Environment changed;
    std::string message;
  };
  for (const auto& [changed, message] : {
           Bad{{{"ACC_MACHINE_RANK", "2"}}, "ACC_MACHINE_RANK is 2, but ACC_NUM_MACHINES is 2"},
           Bad{{{"ACC_MACHINE_RANK", "x"}},
               "ACC_MACHINE_RANK must be a number of at least 0, got \"x\""},
           Bad{{{"ACC_LOCAL_PROCESSES", "8"}},
               "ACC_NUM_MACHINES is 2, but ACC_LOCAL_PROCESSES has 1 numbers"},
           Bad{{{"ACC_LOCAL_PROCESSES", "8,"}},
               "ACC_LOCAL_PROCESSES must be numbers joined by commas, got \"8,\""},
       }) {
    CAPTURE(message);
    CHECK(refusal([&, &bad = changed] {
            return cluster::find_job_environment(with(own, bad), host("n2"));
          }) == message);
  }
}

TEST_CASE("managers that merge output, and managers that signal every process") {
  struct Manager {
    Environment environment;
    bool merges_output, signals_everybody;
  };
  for (const auto& [environment, merges_output, signals_everybody] : {
           Manager{kStep, true, true},
           Manager{{{"ACC_MACHINE_RANK", "0"},
                    {"ACC_NUM_MACHINES", "1"},
                    {"ACC_MAIN_PROCESS_IP", "n1"},
                    {"ACC_MAIN_PROCESS_PORT", "1"}},
                   true,
                   false},
           Manager{with(kPod, {{"JOB_COMPLETION_INDEX", "1"}}), false, false},
           Manager{{{"FLUX_JOB_ID", "f"}, {"FLUX_TASK_RANK", "0"}}, true, true},
       }) {
    const auto place = cluster::find_job_environment(environment, host("n2"));
    REQUIRE(place);
    CAPTURE(place->manager.name);
    CHECK(place->manager.merges_output == merges_output);
    CHECK(place->manager.signals_everybody == signals_everybody);
  }
}

TEST_CASE("jobs with nearby numbers have distant ports") {
  std::set<std::uint16_t> ports;
  for (std::uint64_t job = 1'000'000; job < 1'014'983; ++job) {
    const std::uint16_t port = cluster::port_of(job);
    REQUIRE(port >= 15'000);
    REQUIRE(port < 30'000);
    REQUIRE(ports.insert(port).second);
    REQUIRE(std::abs(port - cluster::port_of(job + 1)) > 16);
  }
}

}  // namespace
}  // namespace acc::launcher
