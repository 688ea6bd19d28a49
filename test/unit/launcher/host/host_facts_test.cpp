// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/host_facts.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

namespace acc::launcher {
namespace {

TEST_CASE("the facts of this machine: cores, host name, folder of acclaunch") {
  const HostFacts facts = detect_host_facts({{"TMPDIR", "/var/tmp"}, {"CUDA_VISIBLE_DEVICES", ""}});
  CHECK_FALSE(facts.cpus.empty());
  CHECK(facts.visible_gpus.empty());
  CHECK_FALSE(facts.hostname.empty());
  CHECK(facts.executable_directory == std::filesystem::path(ACC_BIN_DIR));
  CHECK(facts.scratch_directory.parent_path() == "/var/tmp");
}

std::vector<std::string> own_parent() {
  std::ifstream file("/proc/" + std::to_string(::getppid()) + "/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    if (!word.empty()) {
      words.push_back(word);
    }
  }
  return words;
}

TEST_CASE("ancestors are read only under managers that need them") {
  CHECK(detect_host_facts({}).ancestors.empty());
  CHECK(detect_host_facts({{"PMI_RANK", ""}}).ancestors.empty());
  for (const std::string variable : {"PMI_RANK", "SLURM_STEP_ID"}) {
    const auto ancestors = detect_host_facts({{variable, "0"}}).ancestors;
    REQUIRE_FALSE(ancestors.empty());
    CHECK(ancestors.size() <= 16);
    CHECK(ancestors.front() == own_parent());
  }
}

TEST_CASE("simulated GPUs replace the machine's own") {
  const HostFacts facts =
      detect_host_facts({{"ACC_SIMULATE_GPUS", "11"}, {"CUDA_VISIBLE_DEVICES", "10,1,3"}});
  REQUIRE(facts.gpu.devices.size() == 11);
  CHECK(facts.gpu.devices[10].name == "simulated");
  CHECK(facts.visible_gpus == std::vector<int>{10, 1, 3});
  for (int i = 0; i < 11; ++i) {
    CHECK(find_gpu(facts.gpu.devices[static_cast<std::size_t>(i)].uuid, facts.gpu.devices) == i);
  }
  CHECK(detect_host_facts({{"ACC_SIMULATE_GPUS", "4"}}).visible_gpus.size() == 4);
  CHECK(detect_host_facts({{"ACC_SIMULATE_GPUS", "0"}}).gpu.devices.empty());
  for (const std::string wrong : {"-1", "two", "1025", "1.5"}) {
    CHECK_THROWS_WITH_AS(
        detect_host_facts({{"ACC_SIMULATE_GPUS", wrong}}),
        ("ACC_SIMULATE_GPUS must be a number of GPUs from 0 to 1024, got \"" + wrong + "\"")
            .c_str(),
        Error);
  }
}

}  // namespace
}  // namespace acc::launcher
