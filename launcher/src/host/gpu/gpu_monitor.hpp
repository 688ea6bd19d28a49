// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/gpu/driver_library.hpp"

#include <cstdint>
#include <optional>

namespace acc::launcher::host {

/// What a GPU is used for now, by all processes together. Empty: unknown.
struct GpuUsage {
  std::optional<double> percent{};  ///< time in which a kernel ran
  std::optional<std::int64_t> used_bytes{};
};

/// Samples GPUs through NVML, which it keeps open. Without the library or a driver nothing is
/// known.
class GpuMonitor {
 public:
  GpuMonitor();
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// Returns the usage of a device by its index in GpuFacts.
  [[nodiscard]] GpuUsage usage(int device) const;

 private:
  DriverLibrary nvml_;
  bool is_open_;
};

}  // namespace acc::launcher::host
