// SPDX-License-Identifier: Apache-2.0
// acclaunch on a machine with GPUs. Only the driver's libraries are replaced by stand-ins.
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <filesystem>

using namespace acc::test;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

/// Returns the first and the last CPU that this process may run on.
std::pair<std::string, std::string> two_cores() {
  cpu_set_t usable;
  REQUIRE(::sched_getaffinity(0, sizeof usable, &usable) == 0);
  int first = 0;
  int last = CPU_SETSIZE - 1;
  for (; !CPU_ISSET(first, &usable); ++first) {
  }
  for (; !CPU_ISSET(last, &usable); --last) {
  }
  return {std::to_string(first), std::to_string(last)};
}

/// Two GPUs, each next to a NUMA node with one core.
class Machine {
 public:
  [[nodiscard]] Variables with(const Variables& more) const {
    const auto [first, last] = two_cores();
    Variables all = {{"LD_LIBRARY_PATH", ACC_STANDIN_FOLDER},
                     {"ACC_SYS_ROOT", sys_.path().string()},
                     {"HWLOC_SYNTHETIC", "numa:2 pu:1(indexes=" + first + "," + last + ")"},
                     {"ACC_STANDIN_DEVICES", "2"},
                     {"ACC_STANDIN_NUMA", "0,1"}};
    for (const auto& [name, value] : more) {
      all[name] = value;
    }
    return all;
  }

 private:
  TemporaryFolder sys_;  // an empty sysfs, without the GPUs
};

struct Ran {
  int status;
  std::string out, err;
};

Ran acclaunch(const Words& words, const Variables& variables) {
  Words command = {ACC_BIN_DIR "/acclaunch"};
  command.insert(command.end(), words.begin(), words.end());
  Program program(command, variables);
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

const std::string kShowCores =
    R"(echo "cores $(sed -n 's/Cpus_allowed_list:\t//p' /proc/self/status) $ACC_DEVICE")";

}  // namespace

TEST_CASE("GPUs: a worker runs on the cores of its GPU's NUMA node") {
  const Machine machine;
  const auto [first, last] = two_cores();
  const Words words = {
      "--use_fsdp", "--enable_cpu_affinity", "--num_processes", "2", "/bin/sh", "-c", kShowCores};
  const Ran both = acclaunch(words, machine.with({}));
  CHECK(both.status == 0);
  CHECK(contains(both.out, "[0] cores " + first + " cuda\n"));
  CHECK(contains(both.out, "[1] cores " + last + " cuda\n"));
  const Ran turned = acclaunch(words, machine.with({{"CUDA_VISIBLE_DEVICES", "1,0"}}));
  CHECK(contains(turned.out, "[0] cores " + last + " cuda\n"));
  CHECK(contains(turned.out, "[1] cores " + first + " cuda\n"));
  Words by_id = words;
  by_id.insert(by_id.begin(), {"--gpu_ids", "1,0"});
  const Ran chosen = acclaunch(by_id, machine.with({}));
  CHECK(contains(chosen.out, "[0] cores " + last + " cuda\n"));
}

TEST_CASE("GPUs: explain shows the GPUs and the placement of each worker") {
  const Machine machine;
  const auto [first, last] = two_cores();
  const Ran shown = acclaunch(
      {"explain", "--use_fsdp", "--enable_cpu_affinity", "--num_processes", "2", "/bin/true"},
      machine.with({}));
  CHECK(shown.status == 0);
  CHECK(contains(shown.out, "gpus        0  stand-in GPU"));
  CHECK(contains(shown.out, "NUMA node 1\n            driver 580.65.06\n"));
  CHECK(
      contains(shown.out, "workers     local rank 0 on GPU 0, CPUs " + first + " of NUMA node 0"));
  CHECK(contains(shown.out, "local rank 1 on GPU 1, CPUs " + last + " of NUMA node 1"));
}

TEST_CASE("GPUs: those who watch a job see the use of each worker's GPU") {
  const Machine machine;
  Program job({ACC_BIN_DIR "/acclaunch", "--use_fsdp", "--num_processes", "2", "--gpu_ids", "1,0",
               "--status_port", "0", "/bin/sleep", "1000"},
              machine.with({}));
  job.wait_for_text("watched at http://");
  const std::string address = job.err().substr(job.err().find("http://") + 7);
  const Words top = {"top", "--rdzv_endpoint", address.substr(0, address.find('\n')), "--json"};
  Ran shown;
  do {
    shown = acclaunch(top, {});
    REQUIRE_MESSAGE(shown.status == 0, shown.err);
  } while (!contains(shown.out, "utilization_percent"));
  // Rank 0 is on GPU 1, whose stand-in is used to 15 %.
  const auto rank_0 = shown.out.find("utilization_percent\": 15");
  CHECK(rank_0 < shown.out.size());
  CHECK(shown.out.find("utilization_percent\": 5") > rank_0);
}

TEST_CASE("GPUs: without NVML the CUDA driver is queried, independent of CUDA_VISIBLE_DEVICES") {
  const Machine machine;
  const TemporaryFolder folder;
  fs::create_symlink(fs::path(ACC_STANDIN_FOLDER) / "libcuda.so.1", folder.path() / "libcuda.so.1");
  const Ran shown = acclaunch(
      {"explain", "--use_fsdp", "--num_processes", "1", "/bin/true"},
      machine.with({{"LD_LIBRARY_PATH", folder.path().string()}, {"CUDA_VISIBLE_DEVICES", "1"}}));
  CHECK(shown.status == 0);
  CHECK(contains(shown.out, "            1  stand-in GPU"));
  CHECK(contains(shown.out, "driver for CUDA 13.0"));
  CHECK(contains(shown.out, "local rank 0 on GPU 1"));
}

TEST_CASE("GPUs: without GPUs several ranks run on the CPU, and a notice says why") {
  const Machine machine;
  const std::map<std::string, std::string> reasons = {
      {"no_driver", "no GPU on this machine: the workers run on the CPU"},
      {"no_device", "no GPU on this machine, though NVIDIA's driver 580.65.06 is installed"}};
  for (const auto& [trouble, reason] : reasons) {
    CAPTURE(trouble);
    const Ran ran = acclaunch({"--multi_gpu", "--num_processes", "2", "/bin/sh", "-c", kShowCores},
                              machine.with({{"ACC_STANDIN_ERROR", trouble}}));
    CHECK(ran.status == 0);
    CHECK(contains(ran.err, reason));
    CHECK(contains(ran.out, " cpu\n"));
  }
}

TEST_CASE("GPUs: a missing GPU that is requested ends in one message and status 2") {
  struct Case {
    Words words;
    Variables variables;
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {{"--use_fsdp", "--num_processes", "3"},
       {},
       "3 processes on this machine need one GPU each, but there are 2"},
      {{"--use_fsdp", "--num_processes", "2"},
       {{"CUDA_VISIBLE_DEVICES", "0"}},
       "2 processes on this machine need one GPU each, but there is 1"},
      {{"--gpu_ids", "0,2", "--num_processes", "2"},
       {},
       "gpu_ids names GPU 2, but this machine has 2, numbered from 0"},
  };
  const Machine machine;
  for (const auto& [words, variables, sentence] : cases) {
    CAPTURE(sentence);
    Words all = words;
    all.insert(all.end(), {"/bin/sh", "-c", "echo a worker runs"});
    const Ran ran = acclaunch(all, machine.with(variables));
    CHECK(ran.status == 2);
    CHECK(contains(ran.err, sentence));
    CHECK_FALSE(contains(ran.out, "a worker runs"));
  }
  const Ran shared = acclaunch({"--use_fsdp", "--num_processes", "3", "/bin/sh", "-c", kShowCores},
                               machine.with({{"ACC_SHARE_GPUS", "1"}}));
  CHECK(shared.status == 0);
  CHECK(contains(shared.out, " cuda\n"));
}
