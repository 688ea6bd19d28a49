// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/gpu_facts.hpp"

#include "host/gpu/ask_driver.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <fstream>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::vector<Gpu> four_gpus() {
  std::vector<Gpu> gpus(4);
  gpus[0].uuid = "GPU-aa11";
  gpus[1].uuid = "GPU-aa22";
  gpus[2].uuid = "GPU-bb33";
  gpus[3].uuid = "GPU-cc44";
  gpus[3].partitions = {"MIG-1111", "MIG-1122"};
  return gpus;
}

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  const std::vector<std::pair<std::string, std::vector<int>>> cases = {
      {"", {}},
      {"0", {0}},
      {"2,0", {2, 0}},
      {" 1, 3", {1, 3}},
      {"0,4,1", {0}},  // the list ends before an entry that names no device
      {"-1,0", {}},
      {"1,NoDevFiles", {1}},
      {"0,0", {}},  // a repeated device empties the list
      {"GPU-bb33,GPU-aa11", {2, 0}},
      {"GPU-bb", {2}},  // a prefix is sufficient
      {"GPU-aa", {}},   // if only one device has it
      {"GPU-zz,0", {}},
      {"MIG-1111", {3}},
      {"MIG-11", {3}},
      {"MIG-1111,MIG-1122", {3}},
      {"MIG-GPU-cc44/1/0", {3}},
  };
  for (const auto& [list, visible] : cases) {
    CAPTURE(list);
    CHECK(visible_gpus(list, four_gpus()) == visible);
  }
  CHECK(visible_gpus("0", {}).empty());
}

TEST_CASE("without the driver's libraries the kernel module is read, ordered by PCI address") {
  const acc::test::TemporaryFolder proc;
  const fs::path nvidia = proc.path() / "driver/nvidia";
  write(nvidia / "version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n");
  write(nvidia / "gpus/0000:9b:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t GPU-8f3a-11\n");
  write(nvidia / "gpus/0000:1b:00.0/information", "Model: \t NVIDIA H100\n");
  const GpuFacts facts = host::ask_kernel_module(proc.path());
  CHECK(facts.driver_version == "580.65.06");
  REQUIRE(facts.devices.size() == 2);
  CHECK(facts.devices[0].name == "NVIDIA H100");
  CHECK(facts.devices[0].pci_id == "0000:1b:00.0");
  CHECK(facts.devices[1].name == "NVIDIA H200");
  CHECK(facts.devices[1].uuid == "GPU-8f3a-11");
  CHECK(host::ask_kernel_module(proc.path() / "missing").driver_version.empty());
}

TEST_CASE("a GPU's NUMA node is that of its PCI device") {
  const acc::test::TemporaryFolder sys;
  write(sys.path() / "bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
  write(sys.path() / "bus/pci/devices/0000:9b:00.0/numa_node", "-1\n");
  CHECK(host::numa_node_of(sys.path(), "0000:1b:00.0") == 1);
  CHECK(host::numa_node_of(sys.path(), "0000:9b:00.0") == -1);
  CHECK(host::numa_node_of(sys.path(), "0000:ff:00.0") == -1);
  CHECK(host::numa_node_of(sys.path(), "") == -1);
}

}  // namespace
}  // namespace acc::launcher
