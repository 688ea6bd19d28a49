#include "acc/launcher/host_facts.hpp"

#include "acc/base/error.hpp"
#include "host/cores.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

std::vector<NumaNode> numa_nodes(const fs::path& sys, const std::vector<int>& usable) {
  std::vector<NumaNode> nodes;
  const fs::path folder = sys / "devices/system/node";
  std::string ids;
  std::getline(std::ifstream(folder / "online"), ids);
  for (const int id : parse_core_list(ids)) {
    std::string list;
    std::getline(std::ifstream(folder / ("node" + std::to_string(id)) / "cpulist"), list);
    NumaNode& node = nodes.emplace_back(NumaNode{id, {}});
    std::ranges::set_intersection(parse_core_list(list), usable, std::back_inserter(node.cores));
  }
  return nodes;
}

/// What ACC_SIMULATE_GPUS asks for; nothing where it is unset or empty.
std::optional<int> simulated_gpu_count(const plugins::Environment& environment) {
  constexpr int kMost = 1024;
  const std::string text = plugins::variable(environment, "ACC_SIMULATE_GPUS");
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

fs::path scratch_directory(const plugins::Environment& environment) {
  return fs::path(plugins::variable(environment, "TMPDIR", "/tmp")) /
         ("acclaunch_" + std::to_string(getpid()) + "_" + std::to_string(std::random_device{}()));
}

}  // namespace

HostFacts detect_host_facts(const plugins::Environment& environment) {
  HostFacts facts;
  const fs::path sys = plugins::variable(environment, "ACC_SYS_ROOT", "/sys");
  facts.cores = usable_cores();
  facts.numa_nodes = numa_nodes(sys, facts.cores);
  const auto simulated = simulated_gpu_count(environment);
  facts.gpu = simulated ? simulated_gpus(*simulated) : detect_gpus(sys);
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
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
