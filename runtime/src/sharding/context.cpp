#include "sharding/context.hpp"

namespace acc::sharding {

device::MemoryPtr Context::allocate_state(std::int64_t numel, std::string_view what,
                                          DType dtype) const {
  const std::size_t nbytes = static_cast<std::size_t>(numel) * nbytes_of(dtype);
  return offload_optimizer() ? device->allocate_host(nbytes, what) : device->allocate(nbytes, what);
}

void Context::await_compute() const {
  // The CPU updater runs on the calling thread, so the host itself has to wait. A GPU updater is
  // the compute device: its stream runs the update after the work that was issued before.
  if (offload_optimizer()) {
    device->record(device->compute())->synchronize();
  }
}

}  // namespace acc::sharding
