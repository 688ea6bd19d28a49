// SPDX-License-Identifier: Apache-2.0
#include "host/gpu/gpu_monitor.hpp"

#include <algorithm>

namespace acc::launcher::host {
namespace {

/// Layouts of nvmlUtilization_t and nvmlMemory_t.
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlMemory {
  unsigned long long total, free, used;
};

}  // namespace

GpuMonitor::GpuMonitor() : nvml_("libnvidia-ml.so.1"), is_open_(nvml_.call("nvmlInit_v2")) {}

GpuMonitor::~GpuMonitor() {
  if (is_open_) {
    nvml_.call("nvmlShutdown");
  }
}

GpuUsage GpuMonitor::usage(int device) const {
  GpuUsage usage;
  void* handle = nullptr;
  if (!is_open_ || device < 0 ||
      !nvml_.call("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned>(device), &handle)) {
    return usage;
  }
  NvmlUtilization utilization{};
  if (nvml_.call("nvmlDeviceGetUtilizationRates", handle, &utilization)) {
    usage.percent = std::min(utilization.gpu, 100U);
  }
  NvmlMemory memory{};
  if (nvml_.call("nvmlDeviceGetMemoryInfo", handle, &memory)) {
    usage.used_bytes = static_cast<std::int64_t>(memory.used);
  }
  return usage;
}

}  // namespace acc::launcher::host
