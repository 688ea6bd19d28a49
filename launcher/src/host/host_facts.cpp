// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/host_facts.hpp"

#include "acc/base/error.hpp"
#include "acc/base/temporary_folder.hpp"
#include "acc/base/text.hpp"
#include "host/own_variables.hpp"
#include "host/topology.hpp"

#include <unistd.h>

#include <filesystem>
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
std::optional<int> simulated_gpu_count(const settings::Environment& environment) {
  constexpr int kMost = 1024;
  const std::string text = host::value_of(environment, host::variables.simulate_gpus);
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

fs::path scratch_directory(const settings::Environment& environment) {
  return fs::path(host::value_of(environment, host::variables.temporary_folder,
                                 default_temporary_folder())) /
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
bool needs_ancestors(const settings::Environment& environment) {
  return !settings::variable(environment, "PMI_RANK").empty() ||
         !settings::variable(environment, "SLURM_STEP_ID").empty();
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns the parent's pid, or 0. It is the fourth field of /proc/PID/stat (proc(5)). The second
/// field, the name in parentheses, may itself contain spaces and parentheses, so fields are counted
/// from the last `)`.
pid_t parent_of(const fs::path& process) {
  const std::string stat = text_of(process / "stat");
  const auto name_end = stat.rfind(')');
  char state = 0;
  pid_t parent = 0;
  if (name_end != std::string::npos) {
    std::istringstream(stat.substr(name_end + 1)) >> state >> parent;
  }
  return parent;
}

/// Returns the command line without empty words: a daemon that overwrites its arguments with a
/// title leaves many of them.
std::vector<std::string> words_of(const fs::path& process) {
  std::vector<std::string> words;
  std::istringstream text(text_of(process / "cmdline"));
  for (std::string word; std::getline(text, word, '\0');) {
    if (!word.empty()) {
      words.push_back(std::move(word));
    }
  }
  return words;
}

/// Returns HostFacts::ancestors, at most 16. The list ends early at a process whose command line is
/// not readable in /proc.
std::vector<std::vector<std::string>> detect_ancestors() {
  constexpr std::size_t kMost = 16;
  const fs::path proc = "/proc";
  std::error_code error;
  const fs::path own = fs::read_symlink(proc / "self/exe", error);
  std::vector<std::vector<std::string>> found;
  pid_t pid = ::getppid();
  for (std::size_t seen = 0; seen < kMost && pid > 0; ++seen) {
    const fs::path process = proc / std::to_string(pid);
    auto words = words_of(process);
    if (words.empty()) {
      break;
    }
    // Skips acclaunch's own processes. Of another user's process only the command line is readable.
    if (fs::read_symlink(process / "exe", error) != own || error) {
      found.push_back(std::move(words));
    }
    pid = parent_of(process);
  }
  return found;
}

}  // namespace

HostFacts detect_host_facts(const settings::Environment& environment) {
  HostFacts facts;
  const fs::path sys = host::value_of(environment, host::variables.sys_root, "/sys");
  facts.cpus = host::detect_cpus();
  const auto simulated = simulated_gpu_count(environment);
  facts.gpu = simulated ? simulated_gpus(*simulated, numa_nodes(facts.cpus)) : detect_gpus(sys);
  const auto visible = environment.find(std::string(host::variables.cuda_visible_devices.name));
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
