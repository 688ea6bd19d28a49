#include "acc/launcher/host_facts.hpp"

#include "acc/plugins/settings.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

/// nvmlDeviceGetCount counts without making a CUDA context, and ignores CUDA_VISIBLE_DEVICES.
int count_by_nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return -1;
  }
  using Init = int (*)();
  using Count = int (*)(unsigned*);
  const auto init = reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"));
  const auto get_count = reinterpret_cast<Count>(dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto shutdown = reinterpret_cast<Init>(dlsym(library, "nvmlShutdown"));
  int result = -1;
  unsigned count = 0;
  if (init != nullptr && get_count != nullptr && shutdown != nullptr && init() == 0) {
    result = get_count(&count) == 0 ? static_cast<int>(count) : -1;
    shutdown();
  }
  dlclose(library);
  return result;
}

int count_physical_gpus() {
  if (const int count = count_by_nvml(); count >= 0) {
    return count;
  }
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

fs::path scratch_directory(const plugins::Environment& environment) {
  return fs::path(plugins::variable(environment, "TMPDIR", "/tmp")) /
         ("acclaunch_" + std::to_string(getpid()) + "_" + std::to_string(std::random_device{}()));
}

}  // namespace

int visible_gpus(const std::string& list, int physical) {
  int count = 0;
  for (const std::string_view entry : plugins::split(list, ',')) {
    const auto index = plugins::parse_integer(entry);
    const bool by_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!by_name && (!index || *index < 0 || *index >= physical)) {
      break;
    }
    ++count;
  }
  return std::min(count, std::max(physical, 0));
}

HostFacts detect_host_facts(const plugins::Environment& environment) {
  HostFacts facts;
  facts.cores = usable_cores();
  facts.physical_gpus = count_physical_gpus();
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  facts.gpus = visible == environment.end() ? facts.physical_gpus
                                            : visible_gpus(visible->second, facts.physical_gpus);
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
