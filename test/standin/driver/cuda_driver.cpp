// SPDX-License-Identifier: Apache-2.0
#include "standin/settings.hpp"

#include <cuda.h>

#include <cstdio>
#include <cstring>

// The header redefines this name to the second version of the function; the driver exports both.
#undef cuDeviceGetUuid

/// The part of libcuda.so.1 that lists devices. Like the driver, it reads CUDA_VISIBLE_DEVICES
/// once, in cuInit.
namespace {

struct Driver {
  standin::Settings settings;
  std::vector<int> visible;
  bool ready = false;
};

Driver& driver() {
  static Driver state;
  return state;
}

/// Number on the machine of a visible device; -1 if it is not visible.
int physical(CUdevice device) {
  const auto& visible = driver().visible;
  const bool exists = device >= 0 && device < static_cast<int>(visible.size());
  return exists ? visible[static_cast<std::size_t>(device)] : -1;
}

template <typename Body>
CUresult with_device(CUdevice device, Body&& body) {
  if (!driver().ready) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (physical(device) < 0) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  body(physical(device));
  return CUDA_SUCCESS;
}

void write(char* text, int size, const std::string& value) {
  std::snprintf(text, static_cast<std::size_t>(size), "%s", value.c_str());
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
  Driver state;
  state.settings = standin::read_settings();
  state.visible = standin::visible_devices(state.settings);
  const bool works = state.settings.fault == standin::Fault::none ||
                     state.settings.fault == standin::Fault::old_driver;
  state.ready = works && !state.visible.empty();
  driver() = state;
  return state.ready ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int* version) {
  const bool old = standin::read_settings().fault == standin::Fault::old_driver;
  *version = old ? standin::kOldDriverVersion : standin::kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (!driver().ready) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  *count = static_cast<int>(driver().visible.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return with_device(ordinal, [&](int) { *device = ordinal; });
}

CUresult cuDeviceGetName(char* text, int size, CUdevice device) {
  return with_device(device, [&](int) { write(text, size, standin::kDeviceName); });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return with_device(device, [&](int number) {
    const auto bytes = standin::device_uuid(number);
    std::memcpy(uuid->bytes, bytes.data(), bytes.size());
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
  return with_device(device,
                     [&](int number) { write(text, size, standin::device_pci_text(number, 4)); });
}

CUresult cuDeviceTotalMem(std::size_t* nbytes, CUdevice device) {
  return with_device(device, [&](int) { *nbytes = driver().settings.memory; });
}

}  // extern "C"
