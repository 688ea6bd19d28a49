#include "acc/launcher/host_facts.hpp"

#include "acc/base/error.hpp"
#include "host/own_variables.hpp"
#include "host/topology.hpp"

#include <unistd.h>

#include <array>
#include <numeric>
#include <optional>
#include <random>
#include <set>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

/// What ACC_SIMULATE_GPUS asks for; nothing where it is unset or empty.
std::optional<int> simulated_gpu_count(const plugins::Environment& environment) {
  constexpr int kMost = 1024;
  const std::string text = value_of(environment, variables::simulate_gpus);
  if (text.empty()) {
    return std::nullopt;
  }
  const auto count = plugins::parse_integer(text);
  if (!count || *count < 0 || *count > kMost) {
    throw Error(Errc::config, "ACC_SIMULATE_GPUS must be a number of GPUs from 0 to " +
                                  std::to_string(kMost) + ", got \"" + text + "\"");
  }
  return static_cast<int>(*count);
}

std::vector<int> numa_nodes(const std::vector<Cpu>& cpus) {
  std::set<int> nodes;
  for (const Cpu& cpu : cpus) {
    nodes.insert(cpu.numa_node);
  }
  return {nodes.begin(), nodes.end()};
}

fs::path scratch_directory(const plugins::Environment& environment) {
  return fs::path(value_of(environment, variables::temporary_folder, "/tmp")) /
         ("acclaunch_" + std::to_string(getpid()) + "_" + std::to_string(std::random_device{}()));
}

}  // namespace

HostFacts detect_host_facts(const plugins::Environment& environment) {
  HostFacts facts;
  const fs::path sys = value_of(environment, variables::sys_root, "/sys");
  facts.cpus = detect_cpus();
  const auto simulated = simulated_gpu_count(environment);
  facts.gpu = simulated ? simulated_gpus(*simulated, numa_nodes(facts.cpus)) : detect_gpus(sys);
  const auto visible = environment.find(std::string(variables::cuda_visible_devices.name));
  if (visible != environment.end()) {
    facts.visible_gpus = visible_gpus(visible->second, facts.gpu.devices);
  } else {
    facts.visible_gpus.resize(facts.gpu.devices.size());
    std::iota(facts.visible_gpus.begin(), facts.visible_gpus.end(), 0);
  }
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) {
    facts.hostname = name.data();
  }
  std::error_code error;
  facts.working_directory = fs::current_path(error);
  facts.executable_directory = fs::read_symlink("/proc/self/exe", error).parent_path();
  facts.scratch_directory = scratch_directory(environment);
  return facts;
}

}  // namespace acc::launcher
