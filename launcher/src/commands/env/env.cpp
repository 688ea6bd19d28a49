// SPDX-License-Identifier: Apache-2.0
// acclaunch env: prints the facts that a bug report needs. A fact that cannot be found out is
// printed as "Not found"; the command does not fail because of it.
#include "acc/base/error.hpp"
#include "acc/base/library_search.hpp"
#include "acc/base/text.hpp"
#include "acc/documents/document.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/settings/environment.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "host/command_output.hpp"
#include "host/topology.hpp"
#include "plan/program_command.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using documents::Node;

/// Names and values, printed as one line each.
using Facts = std::vector<std::pair<std::string, std::string>>;

std::string gibibytes(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f GiB", bytes / (1024.0 * 1024.0 * 1024.0));
  return text.data();
}

/// Returns ", Debian GNU/Linux 12 (bookworm)", or an empty string if unknown.
std::string distribution() {
  std::ifstream file("/etc/os-release");
  constexpr std::string_view kKey = "PRETTY_NAME=";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) {
      std::erase(line, '"');
      return ", " + line.substr(kKey.size());
    }
  }
  return {};
}

std::string platform() {
  utsname name{};
  ::uname(&name);
  return std::string(name.sysname) + " " + name.release + " " + name.machine + distribution();
}

std::string memory() {
  struct sysinfo info {};
  ::sysinfo(&info);
  const double unit = info.mem_unit;
  return gibibytes(static_cast<double>(info.totalram) * unit) + ", " +
         gibibytes(static_cast<double>(info.freeram) * unit) + " free";
}

std::string cores(const HostFacts& host) {
  return std::to_string(host::grouped(host.cpus, &Cpu::core).size()) + " usable (CPUs " +
         host::cpu_list(host.cpus) + " of " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + ")";
}

std::string numa(const HostFacts& host) {
  const auto nodes = host::grouped(host.cpus, &Cpu::numa_node);
  std::string text = std::to_string(nodes.size());
  for (const std::vector<Cpu>& node : nodes) {
    text += "; node " + std::to_string(node.front().numa_node) + ": CPUs " + host::cpu_list(node);
  }
  return text;
}

std::string shared_memory() {
  struct statvfs place {};
  if (::statvfs("/dev/shm", &place) != 0) {
    return "not mounted";
  }
  const double block = static_cast<double>(place.f_frsize);
  return gibibytes(block * static_cast<double>(place.f_blocks)) + ", " +
         gibibytes(block * static_cast<double>(place.f_bavail)) + " free";
}

/// Returns the soft and hard limit of a resource.
std::string limit(int resource) {
  rlimit limits{};
  ::getrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
  const auto word = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value);
  };
  return word(limits.rlim_cur) + ", hard limit " + word(limits.rlim_max);
}

Facts system_facts(const HostFacts& host) {
  return {{"Platform", platform()},
          {"glibc", ::gnu_get_libc_version()},
          {"acclaunch path", (host.executable_directory / "acclaunch").string()},
          {"System RAM", memory()},
          {"Cores", cores(host)},
          {"NUMA nodes", numa(host)},
          {"/dev/shm", shared_memory()},
          {"Open files (nofile)", limit(RLIMIT_NOFILE)},
          {"Locked memory (memlock, bytes)", limit(RLIMIT_MEMLOCK)}};
}

Facts build_facts() {
#ifdef __clang__
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return {{"acclaunch version", ACC_VERSION},
          {"Compiler", compiler + ", " ACC_BUILD_TYPE},
          {"Built against", ACC_BUILT_AGAINST}};
}

std::string indices(const std::vector<int>& numbers) {
  return numbers.empty() ? "none" : fmt::format("{}", fmt::join(numbers, ", "));
}

/// Returns the library's version. NCCL encodes 2.28.3 as 22803 (nccl.h, NCCL_VERSION).
std::string version_of(void* library) {
  using GetVersion = int (*)(int*);
  const auto get_version = reinterpret_cast<GetVersion>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return "unknown version";
  }
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Loads NCCL from the place where the runtime would load it.
std::string nccl(const HostFacts& host) {
  try {
    const OpenedLibrary library =
        open_library(nccl_library_search(), host.executable_directory / "acclaunch");
    return version_of(library.handle) + " (" + library.path + ")";
  } catch (const Error&) {
    return "Not found";
  }
}

Facts gpu_facts(const HostFacts& host) {
  const std::string& driver = host.gpu.driver_version;
  Facts facts = {{"NVIDIA driver", driver.empty() ? "Not found" : driver}};
  for (const Gpu& gpu : host.gpu.devices) {
    facts.emplace_back("GPU " + std::to_string(facts.size() - 1),
                       gpu.name + ", " + gpu.uuid + (gpu.pci_id.empty() ? "" : ", " + gpu.pci_id));
  }
  facts.emplace_back("Visible GPUs", indices(host.visible_gpus));
  facts.emplace_back("NCCL library", nccl(host));
  return facts;
}

constexpr std::chrono::seconds kPatience{20};

// Reads the versions from the packages' metadata, because importing torch takes seconds.
constexpr std::string_view kQuestions = R"py(
import platform, sys
from importlib.metadata import PackageNotFoundError, version
print(platform.python_version(), "(" + sys.executable + ")")
for name in ("torch", "accelerate", "numpy"):
    try:
        print(version(name))
    except PackageNotFoundError:
        print("Not found")
)py";

constexpr std::array kNames = {"Python", "PyTorch", "Accelerate", "NumPy"};

// The script prints one line per name in kNames. If Python cannot be started, all are "Not found".
Facts python_facts(const settings::Environment& environment) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string python = plan::python_named(environment, program.parent_path());
  if (const auto found = plan::find_in_path(python, environment, ".")) {
    python = found->string();
  }
  std::istringstream lines(
      host::command_output({python, "-c", std::string(kQuestions)}, kPatience).value_or(""));
  Facts facts;
  for (const char* name : kNames) {
    std::string line;
    facts.emplace_back(name, std::getline(lines, line) ? line : "Not found");
  }
  return facts;
}

Facts variable_facts(const settings::Environment& environment) {
  constexpr std::array<std::string_view, 9> kPrefixes = {
      "ACC_", "ACCELERATE_", "CUDA_", "FSDP_", "GLOO_", "NCCL_", "OMP_", "PET_", "TORCH_NCCL_"};
  Facts facts;
  for (const auto& [name, value] : environment) {
    if (std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); })) {
      facts.emplace_back(name, value);
    }
  }
  return facts;
}

/// Formats a node on one line, in YAML's flow style.
std::string inline_text(const Node& node) {
  std::string text;
  for (const auto& [key, value] : node.entries) {
    text += (text.empty() ? "" : ", ") + key + ": " + inline_text(value);
  }
  for (const Node& item : node.items) {
    text += (text.empty() ? "" : ", ") + inline_text(item);
  }
  switch (node.kind) {
    case Node::Kind::null: return "null";
    case Node::Kind::list: return "[" + text + "]";
    case Node::Kind::map: return "{" + text + "}";
    default: return node.text;
  }
}

std::string lines_of(const Facts& facts, const char* indent = "") {
  std::string text;
  for (const auto& [name, value] : facts) {
    text += std::string(indent) + "- " + printable(name) + ": " + printable(value) + "\n";
  }
  return text;
}

/// Returns the keys of the configuration file that --config_file names, or of the default one. If
/// the default file cannot be parsed, its error is printed, since the report may be about it.
std::string config_text(const std::string& config_file, const settings::Environment& environment) {
  const fs::path path =
      config_file.empty() ? default_config_path(environment) : fs::path(config_file);
  std::error_code none;
  if (config_file.empty() && !fs::exists(path, none)) {
    return "- Configuration: Not found\n";
  }
  Facts entries;
  try {
    for (const auto& [key, node] : documents::load_document(path).root.entries) {
      entries.emplace_back(key, inline_text(node));
    }
  } catch (const Error& error) {
    if (!config_file.empty()) {
      throw;
    }
    return "- Configuration: " + printable_lines(error.what()) + "\n";
  }
  return "- Configuration: " + path.string() + "\n" + lines_of(entries, "\t");
}

}  // namespace

int env_command(std::span<const std::string> arguments) {
  OptionParser parser("Prints version, machine and configuration, for a bug report.",
                      "acclaunch env");
  std::string config_file;
  parser.add_option("--config_file", config_file,
                    "configuration to show; default: $HF_HOME/accelerate/default_config.yaml");
  parser.parse(arguments);
  const auto environment = settings::current_environment();
  const HostFacts host = detect_host_facts(environment);
  const Facts variables = variable_facts(environment);
  const std::string text = "Copy this into your report:\n\n" + lines_of(build_facts()) +
                           lines_of(system_facts(host)) + lines_of(gpu_facts(host)) +
                           lines_of(python_facts(environment)) +
                           "- Variables: " + (variables.empty() ? " none" : "") + "\n" +
                           lines_of(variables, "\t") + config_text(config_file, environment);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
