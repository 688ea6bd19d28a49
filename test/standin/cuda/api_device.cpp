// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/devices.hpp"
#include "standin/cuda/emulator.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

using namespace standin;

namespace {

// Properties of a Hopper GPU with few multiprocessors, so that grids sized by their number are
// small.
constexpr int kMultiprocessors = 4;

/// Number on the machine of a visible device; -1 if it is not visible.
int physical(int device) {
  const auto& visible = devices();
  const bool exists = device >= 0 && device < static_cast<int>(visible.size());
  return exists ? visible[static_cast<std::size_t>(device)] : -1;
}

cudaDeviceProp properties(int device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "%s", kDeviceName);
  const auto uuid = device_uuid(physical(device));
  std::memcpy(p.uuid.bytes, uuid.data(), uuid.size());
  p.totalGlobalMem = settings().memory;
  p.sharedMemPerBlock = kDefaultSharedBytes;
  p.sharedMemPerBlockOptin = kMaxSharedBytes;
  p.sharedMemPerMultiprocessor = kMaxSharedBytes + 1024;
  p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = 65536;
  p.regsPerMultiprocessor = 65536;
  p.warpSize = static_cast<int>(kWarpSize);
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.major = settings().capability / 10;
  p.minor = settings().capability % 10;
  p.multiProcessorCount = kMultiprocessors;
  p.l2CacheSize = 50 << 20;
  p.memoryBusWidth = 5120;
  p.asyncEngineCount = 3;
  p.concurrentKernels = 1;
  p.unifiedAddressing = 1;
  p.canMapHostMemory = 1;
  p.hostRegisterSupported = 1;
  p.pciBusID = device_pci_bus(physical(device));
  p.hostNumaId = device_numa_node(settings(), physical(device));
  return p;
}

cudaError_t attribute(int* value, cudaDeviceAttr which, const cudaDeviceProp& p) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrClockRate: *value = 1'980'000; break;        // kHz
    case cudaDevAttrMemoryClockRate: *value = 2'619'000; break;  // kHz
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrPciDeviceId: *value = p.pciDeviceID; break;
    case cudaDevAttrPciDomainId: *value = p.pciDomainID; break;
    case cudaDevAttrHostNumaId: *value = p.hostNumaId; break;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCooperativeLaunch: *value = 0; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: die("device attribute " + std::to_string(which) + " is not emulated");
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return api_call("cudaGetDeviceCount", [&] {
    *count = static_cast<int>(devices().size());
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* result, int device) {
  return api_call("cudaGetDeviceProperties", [&] {
    if (physical(device) < 0) {
      return cudaErrorInvalidDevice;
    }
    *result = properties(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return api_call("cudaDeviceGetAttribute", [&] {
    return physical(device) < 0 ? cudaErrorInvalidDevice
                                : attribute(value, which, properties(device));
  });
}

cudaError_t cudaSetDevice(int device) {
  return api_call("cudaSetDevice", [&] { return set_current_device(device); });
}

cudaError_t cudaGetDevice(int* device) {
  return api_call("cudaGetDevice", [&] {
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  switch (settings().fault) {
    case Fault::no_driver: *version = 0; break;
    case Fault::old_driver: *version = kOldDriverVersion; break;
    default: *version = kDriverVersion;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return api_call("cudaDeviceGetPCIBusId", [&] {
    if (physical(device) < 0) {
      return cudaErrorInvalidDevice;
    }
    std::snprintf(text, static_cast<std::size_t>(size), "%s",
                  device_pci_text(physical(device), 4).c_str());
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api_call("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

}  // extern "C"
