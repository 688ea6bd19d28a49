// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "cuda/nccl/communicator.hpp"
#include "device/device.hpp"

#include <memory>

namespace acc::cuda {

/// GPU memory of NCCL's allocator (ncclMemAlloc), registered with a communicator, so that gathers
/// write to it without an intermediate copy.
class RegisteredBuffer final : public collectives::GroupBuffer {
 public:
  /// Allocates and registers `nbytes`, zero-filled. Collective over the communicator. Returns null
  /// on every rank if this NCCL version does not support registration. Throws Error(out_of_memory).
  static std::shared_ptr<RegisteredBuffer> make(std::shared_ptr<Communicator> communicator,
                                                device::DevicePtr device, std::size_t nbytes);
  RegisteredBuffer(std::shared_ptr<Communicator> communicator, device::DevicePtr device,
                   std::byte* data, std::size_t nbytes);
  ~RegisteredBuffer() override;

 private:
  void register_memory();
  void deregister_memory();
  std::shared_ptr<Communicator> communicator_;
  device::DevicePtr device_;
  void* window_ = nullptr;  ///< symmetric window, or null
  void* handle_ = nullptr;  ///< plain registration, used if there is no window
};

}  // namespace acc::cuda
