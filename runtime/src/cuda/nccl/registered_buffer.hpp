#pragma once

#include "acc/collectives/process_group.hpp"
#include "cuda/nccl/communicator.hpp"
#include "device/device.hpp"

#include <memory>

namespace acc::cuda {

/// GPU memory of NCCL's own allocator, registered with a communicator: gathers write to it without
/// a copy in between.
class RegisteredBuffer final : public collectives::GroupBuffer {
 public:
  /// Collective over the communicator. Null where this NCCL cannot, on every rank alike.
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
  void* window_ = nullptr;
  void* handle_ = nullptr;
};

}  // namespace acc::cuda
