// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/capture.hpp"
#include "standin/cuda/cuda_host.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/standin.hpp"
#include "standin/cuda/streams.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace standin {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxBlockZ = 64;
constexpr unsigned kMaxGridYZ = 65535;

/// Dynamic shared memory that cudaFuncSetAttribute allowed for each kernel.
class SharedLimits {
 public:
  void set(const void* kernel, std::size_t nbytes) {
    const std::lock_guard lock(mutex_);
    limits_[kernel] = nbytes;
  }
  std::size_t of(const void* kernel) {
    const std::lock_guard lock(mutex_);
    const auto found = limits_.find(kernel);
    return found == limits_.end() ? kDefaultSharedBytes
                                  : std::max(kDefaultSharedBytes, found->second);
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::size_t> limits_;
};

SharedLimits& shared_limits() {
  static SharedLimits limits;
  return limits;
}

bool shape_is_valid(const dim3& grid, const dim3& block) {
  const auto threads = std::uint64_t{block.x} * block.y * block.z;
  const auto blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  return threads > 0 && threads <= kMaxThreads && block.z <= kMaxBlockZ && blocks > 0 &&
         grid.x <= 0x7fffffffU && grid.y <= kMaxGridYZ && grid.z <= kMaxGridYZ;
}

void refuse_unknown_attributes(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttributeID id = config.attrs[i].id;
    const bool without_effect = id == cudaLaunchAttributeIgnore ||
                                id == cudaLaunchAttributePriority ||
                                id == cudaLaunchAttributeAccessPolicyWindow;
    if (!without_effect) {
      die("a launch has attribute " + std::to_string(id) + ", which is not emulated");
    }
  }
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> body) {
  return api_call("cudaLaunchKernelEx", [&] {
    if (kernel == nullptr) {
      return cudaErrorInvalidDeviceFunction;
    }
    if (!shape_is_valid(config.gridDim, config.blockDim)) {
      return cudaErrorInvalidConfiguration;
    }
    if (config.dynamicSmemBytes > shared_limits().of(kernel)) {
      return cudaErrorInvalidValue;
    }
    refuse_unknown_attributes(config);
    const StreamPtr stream = stream_of(config.stream);
    if (stream == nullptr || stream->device != current_device()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
      return error;
    }
    count_call();
    enqueue(stream, [device = stream->device, body = std::move(body)] {
      if (injected_failure("kernel")) {
        fail_device(device, cudaErrorLaunchFailure);
      } else {
        body();
      }
      return true;
    });
    return cudaSuccess;
  });
}

}  // namespace standin

extern "C" cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute,
                                            int value) {
  using namespace standin;
  return api_call("cudaFuncSetAttribute", [&] {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
      return cudaSuccess;
    }
    const bool known = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (!known || value < 0 || static_cast<std::size_t>(value) > kMaxSharedBytes) {
      return cudaErrorInvalidValue;
    }
    shared_limits().set(kernel, static_cast<std::size_t>(value));
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* /*kernel*/, int block_size, std::size_t shared_bytes, unsigned) {
  using namespace standin;
  return api_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    constexpr int kThreadsOfMultiprocessor = 2048;
    constexpr std::size_t kSharedOfMultiprocessor = 228 * 1024;
    constexpr std::size_t kSystemsShare = 1024;  // reserved in the shared memory of a block
    if (block_size <= 0 || block_size > static_cast<int>(kMaxThreads)) {
      return cudaErrorInvalidValue;
    }
    *blocks = std::min(kThreadsOfMultiprocessor / block_size,
                       static_cast<int>(kSharedOfMultiprocessor / (shared_bytes + kSystemsShare)));
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                     const void* kernel,
                                                                     int block_size,
                                                                     std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block_size,
                                                                shared_bytes, 0);
}
