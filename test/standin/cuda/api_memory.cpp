// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/capture.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/memory_table.hpp"
#include "standin/cuda/streams.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

using namespace standin;

namespace {

MemoryTable& table() {
  return MemoryTable::instance();
}

bool is_pageable(const void* address) {
  return table().device_of(address) < 0 && !table().is_pinned(address);
}

bool kind_fits(const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = table().device_of(to) >= 0;
  const bool from_device = table().device_of(from) >= 0;
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

void check_both(const void* to, const void* from, std::size_t nbytes) {
  table().check(to, nbytes, "cudaMemcpy's target");
  table().check(from, nbytes, "cudaMemcpy's source");
}

/// Copies. Host memory that is not page-locked is read at the call, which CUDA may do, and written
/// before the call returns, which CUDA does.
cudaError_t copy(void* to, const void* from, std::size_t nbytes, cudaMemcpyKind kind,
                 cudaStream_t handle) {
  const StreamPtr stream = stream_of(handle);
  if (stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  check_both(to, from, nbytes);
  if (nbytes == 0) {
    return cudaSuccess;
  }
  if (to == nullptr || from == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (!kind_fits(to, from, kind)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
    return error;
  }
  // A copy of memory that is not page-locked waits for the stream.
  if (is_pageable(from) || is_pageable(to)) {
    if (const cudaError_t error = may_wait(stream); error != cudaSuccess) {
      return error;
    }
  }
  count_call();
  auto snapshot = std::make_shared<std::vector<unsigned char>>();
  if (is_pageable(from)) {
    const auto* bytes = static_cast<const unsigned char*>(from);
    snapshot->assign(bytes, bytes + nbytes);
  }
  const Ticket ticket = enqueue(stream, [=] {
    check_both(to, from, nbytes);
    std::memmove(to, snapshot->empty() ? from : snapshot->data(), nbytes);
    return true;
  });
  if (is_pageable(to)) {
    wait(ticket);
  }
  return cudaSuccess;
}

cudaError_t fill(void* to, int value, std::size_t nbytes, cudaStream_t handle) {
  const StreamPtr stream = stream_of(handle);
  if (stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  table().check(to, nbytes, "cudaMemset");
  if (nbytes == 0) {
    return cudaSuccess;
  }
  if (is_pageable(to)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
    return error;
  }
  count_call();
  enqueue(stream, [=] {
    table().check(to, nbytes, "cudaMemset");
    std::memset(to, value, nbytes);
    return true;
  });
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t nbytes) {
  return unsafe_api_call("cudaMalloc",
                         [&] { return table().allocate(current_device(), nbytes, address); });
}

cudaError_t cudaFree(void* address) {
  return unsafe_api_call("cudaFree", [&] {
    wait_for_device(current_device());
    if (const int owner = table().device_of(address); owner >= 0) {
      wait_for_device(owner);
    }
    return table().release(address);
  });
}

cudaError_t cudaHostAlloc(void** address, std::size_t nbytes, unsigned) {
  return unsafe_api_call("cudaHostAlloc", [&] { return table().allocate_host(nbytes, address); });
}

cudaError_t cudaMallocHost(void** address, std::size_t nbytes) {
  return unsafe_api_call("cudaMallocHost", [&] { return table().allocate_host(nbytes, address); });
}

cudaError_t cudaFreeHost(void* address) {
  return unsafe_api_call("cudaFreeHost", [&] {
    wait_for_device(current_device());
    return table().release_host(address);
  });
}

cudaError_t cudaHostRegister(void* address, std::size_t nbytes, unsigned) {
  return unsafe_api_call("cudaHostRegister", [&] { return table().pin(address, nbytes); });
}

cudaError_t cudaHostUnregister(void* address) {
  return unsafe_api_call("cudaHostUnregister", [&] {
    wait_for_device(current_device());
    return table().unpin(address);
  });
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* address, unsigned) {
  return api_call("cudaHostGetDevicePointer", [&] {
    *on_device = address;
    return table().is_pinned(address) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return api_call("cudaMemGetInfo", [&] {
    *free = table().free_bytes(current_device());
    *total = settings().memory;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t nbytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return api_call("cudaMemcpyAsync", [&] { return copy(to, from, nbytes, kind, stream); });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t nbytes, cudaMemcpyKind kind) {
  return unsafe_api_call("cudaMemcpy", [&] {
    const cudaError_t error = copy(to, from, nbytes, kind, nullptr);
    // From pageable memory to a device, it returns when the source has been read.
    if (error == cudaSuccess && !(is_pageable(from) && table().device_of(to) >= 0)) {
      wait(now(default_stream(current_device())));
    }
    return error == cudaSuccess ? device_fault(current_device()) : error;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t nbytes, cudaStream_t stream) {
  return api_call("cudaMemsetAsync", [&] { return fill(to, value, nbytes, stream); });
}

cudaError_t cudaMemset(void* to, int value, std::size_t nbytes) {
  return unsafe_api_call("cudaMemset", [&] { return fill(to, value, nbytes, nullptr); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return api_call("cudaPointerGetAttributes", [&] {
    *attributes = {};
    const int device = table().device_of(address);
    const bool pinned = device < 0 && table().is_pinned(address);
    attributes->device = device >= 0 ? device : pinned ? current_device() : -2;
    attributes->type = device >= 0 ? cudaMemoryTypeDevice
                       : pinned    ? cudaMemoryTypeHost
                                   : cudaMemoryTypeUnregistered;
    if (device >= 0 || pinned) {
      attributes->devicePointer = const_cast<void*>(address);
      attributes->hostPointer = pinned ? const_cast<void*>(address) : nullptr;
    }
    return cudaSuccess;
  });
}

}  // extern "C"
