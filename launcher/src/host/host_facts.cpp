#include "acc/launcher/host_facts.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "host/ancestors.hpp"
#include "host/own_variables.hpp"
#include "host/topology.hpp"

#include <unistd.h>

#include <array>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sstream>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

/// Returns the value of ACC_SIMULATE_GPUS; empty if it is unset or empty. Throws Error(config).
std::optional<int> simulated_gpu_count(const plugins::Environment& environment) {
  constexpr int kMost = 1024;
  const std::string text = value_of(environment, variables::simulate_gpus);
  if (text.empty()) {
    return std::nullopt;
  }
  const auto count = parse_integer(text);
  if (!count || *count < 0 || *count > kMost) {
    throw Error(Errc::config, "ACC_SIMULATE_GPUS must be a number of GPUs from 0 to " +
                                  std::to_string(kMost) + ", got \"" + printable(text) + "\"");
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

/// Returns this host's name with its domain: the first name with a dot in the line of /etc/hosts
/// that names this host; "" if there is none. Kubernetes writes such a line in each pod. Does not
/// use DNS.
std::string domain_name_of(const std::string& hostname) {
  std::ifstream file("/etc/hosts");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    bool ours = false;
    std::string long_name;
    for (std::string name; words >> name;) {
      ours = ours || name == hostname;
      if (long_name.empty() && name.find('.') != std::string::npos) {
        long_name = name;
      }
    }
    if (ours && !long_name.empty()) {
      return long_name;
    }
  }
  return "";
}

/// `prefix`: of an installation, or a build folder.
fs::path python_packages(const fs::path& prefix) {
  for (const fs::path& folder : {prefix / "python", prefix / "share" / "acclaunch" / "python"}) {
    std::error_code error;
    if (fs::exists(folder / "acclaunch" / "c10d.py", error)) {
      return folder;
    }
  }
  return {};
}

/// True under PMI and Slurm, whose ancestor processes have facts that no variable has. Otherwise
/// the files in /proc are not read.
bool needs_ancestors(const plugins::Environment& environment) {
  return !plugins::variable(environment, "PMI_RANK").empty() ||
         !plugins::variable(environment, "SLURM_STEP_ID").empty();
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return printable(name.data());
}

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
  facts.hostname = host_name();
  facts.domain_name = domain_name_of(facts.hostname);
  if (needs_ancestors(environment)) {
    facts.ancestors = detect_ancestors();
  }
  std::error_code error;
  facts.working_directory = fs::current_path(error);
  facts.executable_directory = fs::read_symlink("/proc/self/exe", error).parent_path();
  facts.python_packages = python_packages(facts.executable_directory.parent_path());
  facts.scratch_directory = scratch_directory(environment);
  return facts;
}

}  // namespace acc::launcher
