// SPDX-License-Identifier: Apache-2.0
#include "standin/settings.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

/// The part of libnvidia-ml.so.1 that lists devices, regardless of CUDA_VISIBLE_DEVICES. The
/// toolkit does not include NVML's header; types and constants follow NVML's API reference.
namespace {

enum Result {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
};

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

struct MemoryInfo {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Utilization {
  unsigned gpu;
  unsigned memory;
};

using Device = void*;

bool initialized = false;

/// Handles are the devices' numbers, counted from 1.
Device handle_of(unsigned index) {
  return reinterpret_cast<Device>(static_cast<std::uintptr_t>(index) + 1);
}

template <typename Body>
int with_device(Device handle, Body&& body) {
  if (!initialized) {
    return kUninitialized;
  }
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  const standin::Settings settings = standin::read_settings();
  if (number == 0 || number > static_cast<std::uintptr_t>(settings.devices)) {
    return kInvalidArgument;
  }
  return body(settings, static_cast<int>(number) - 1);
}

int write(char* text, unsigned size, const std::string& value) {
  if (value.size() >= size) {
    return kInsufficientSize;
  }
  std::snprintf(text, size, "%s", value.c_str());
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (standin::read_settings().fault == standin::Fault::no_driver) {
    return kDriverNotLoaded;
  }
  initialized = true;
  return kSuccess;
}

int nvmlShutdown() {
  initialized = false;
  return kSuccess;
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  if (!initialized) {
    return kUninitialized;
  }
  const bool old = standin::read_settings().fault == standin::Fault::old_driver;
  return write(text, size, old ? "535.54.03" : "580.65.06");
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (!initialized) {
    return kUninitialized;
  }
  const standin::Settings settings = standin::read_settings();
  const bool none = settings.fault == standin::Fault::no_device;
  *count = none ? 0 : static_cast<unsigned>(settings.devices);
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  return with_device(handle_of(index), [&](const standin::Settings&, int) {
    *device = handle_of(index);
    return kSuccess;
  });
}

int nvmlDeviceGetName(Device device, char* text, unsigned size) {
  return with_device(device, [&](const standin::Settings&, int) {
    return write(text, size, standin::kDeviceName);
  });
}

int nvmlDeviceGetUUID(Device device, char* text, unsigned size) {
  return with_device(device, [&](const standin::Settings&, int number) {
    return write(text, size, standin::device_uuid_text(number));
  });
}

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  return with_device(device, [&](const standin::Settings&, int number) {
    *info = {};
    info->bus = static_cast<unsigned>(standin::device_pci_bus(number));
    write(info->legacy_bus_id, sizeof info->legacy_bus_id, standin::device_pci_text(number, 4));
    return write(info->bus_id, sizeof info->bus_id, standin::device_pci_text(number, 8));
  });
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization* utilization) {
  return with_device(device, [&](const standin::Settings&, int number) {
    *utilization = {.gpu = 10U * static_cast<unsigned>(number) + 5U, .memory = 1};
    return kSuccess;
  });
}

int nvmlDeviceGetMemoryInfo(Device device, MemoryInfo* info) {
  return with_device(device, [&](const standin::Settings& settings, int) {
    *info = {settings.memory, settings.memory, 0};
    return kSuccess;
  });
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  return with_device(device, [&](const standin::Settings&, int) {
    *count = 0;
    return kSuccess;
  });
}

/// nodes: one bit per node. The last parameter, the scope (node or socket), makes no difference
/// here.
int nvmlDeviceGetMemoryAffinity(Device device, unsigned words, unsigned long* nodes, unsigned) {
  return with_device(device, [&](const standin::Settings& settings, int number) {
    for (unsigned i = 0; i < words; ++i) {
      nodes[i] = 0;
    }
    const int known = standin::device_numa_node(settings, number);
    constexpr int kBitsOfWord = 64;
    if (known < 0 || known >= static_cast<int>(words) * kBitsOfWord) {
      return kNotSupported;
    }
    nodes[known / kBitsOfWord] = 1UL << (known % kBitsOfWord);
    return kSuccess;
  });
}

}  // extern "C"
