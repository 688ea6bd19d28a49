// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/registered_buffer.hpp"

#include "acc/base/error.hpp"
#include "collectives/device_buffer.hpp"
#include "cuda/cuda_error.hpp"

#include <algorithm>

namespace acc::cuda {
namespace {

constexpr int kSymmetricWindow = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr std::size_t kAlignment = 4096;

std::size_t rounded(std::size_t nbytes) {
  return std::max((nbytes + kAlignment - 1) / kAlignment, std::size_t{1}) * kAlignment;
}

}  // namespace

std::shared_ptr<RegisteredBuffer> RegisteredBuffer::make(std::shared_ptr<Communicator> communicator,
                                                         device::DevicePtr device,
                                                         std::size_t nbytes) {
  const NcclApi& api = communicator->api();
  if (api.mem_alloc == nullptr || api.mem_free == nullptr || api.comm_register == nullptr) {
    return nullptr;
  }
  // ncclMemAlloc allocates on the thread's current device.
  check(cudaSetDevice(device->index()), "cudaSetDevice", device->index());
  void* data = nullptr;
  if (api.mem_alloc(&data, rounded(nbytes)) != ncclSuccess) {
    // The device's cache may hold the memory that NCCL asks the driver for.
    device->trim();
    if (api.mem_alloc(&data, rounded(nbytes)) != ncclSuccess) {
      throw device->out_of_memory(nbytes, collectives::kGatheredMemory);
    }
  }
  return std::make_shared<RegisteredBuffer>(std::move(communicator), std::move(device),
                                            static_cast<std::byte*>(data), nbytes);
}

RegisteredBuffer::RegisteredBuffer(std::shared_ptr<Communicator> communicator,
                                   device::DevicePtr device, std::byte* data, std::size_t nbytes)
    : communicator_(std::move(communicator)), device_(std::move(device)) {
  data_ = data;
  nbytes_ = nbytes;
  device_->account(static_cast<std::int64_t>(nbytes_), collectives::kGatheredMemory);
  // Ordered on the compute stream, like memory of Device::allocate.
  device_->zero(data_, nbytes_, device_->compute());
  register_memory();
}

RegisteredBuffer::~RegisteredBuffer() {
  try {
    // Unlike memory of the device's cache, this is freed at once, so its last use must be complete.
    device_->record(device_->compute())->synchronize();
    deregister_memory();
  } catch (const Error&) {  // the group is aborted, and with it the registration
  }
  communicator_->api().mem_free(data_);
  device_->account(-static_cast<std::int64_t>(nbytes_), collectives::kGatheredMemory);
}

/// Registers a symmetric window (NCCL 2.27), which lets NCCL use its fastest kernels. On machines
/// that do not support windows NCCL returns none; then a plain registration still saves the copy.
void RegisteredBuffer::register_memory() {
  const NcclApi& api = communicator_->api();
  if (api.comm_window_register != nullptr) {
    window_ = communicator_->make("registering memory", [&](ncclComm_t comm, void** window) {
      return api.comm_window_register(comm, data_, rounded(nbytes_), window, kSymmetricWindow);
    });
  }
  if (window_ == nullptr) {
    handle_ = communicator_->make("registering memory", [&](ncclComm_t comm, void** handle) {
      return api.comm_register(comm, data_, rounded(nbytes_), handle);
    });
  }
}

void RegisteredBuffer::deregister_memory() {
  const NcclApi& api = communicator_->api();
  if (window_ != nullptr) {
    communicator_->call("deregistering memory",
                        [&](ncclComm_t comm) { return api.comm_window_deregister(comm, window_); });
  }
  if (handle_ != nullptr) {
    communicator_->call("deregistering memory",
                        [&](ncclComm_t comm) { return api.comm_deregister(comm, handle_); });
  }
}

}  // namespace acc::cuda
