// SPDX-License-Identifier: Apache-2.0
#include "sharding/context.hpp"

namespace acc::sharding {

// FSDP 1's pre-divide factor: DefaultState._get_gradient_predivide_factor in
// torch/distributed/algorithms/_comm_hooks/default_hooks.py. The exponents of bfloat16 and float32
// have the range to divide after the sum.
GradientScaling scale_gradients(int world_size, int micro_steps, DType reduced) {
  int before = 1;
  if (reduced == DType::float16) {
    while (world_size % before == 0 && before * before < world_size) {
      before *= 2;
    }
  }
  return {.before = 1.0F / static_cast<float>(before),
          .after = static_cast<float>(before) / static_cast<float>(world_size * micro_steps)};
}

SentCodes sent_codes(const settings::ShardingSettings& settings) {
  SentCodes codes;
  if (settings.quantized_weights) {
    codes.weights = {.bits = 8};
  }
  if (settings.quantized_gradients) {
    codes.gradients = {.bits = 7, .rotated = true};
    codes.gradients_of_copies = {.bits = 8};
  }
  return codes;
}

device::MemoryPtr Context::allocate_state(std::int64_t numel, std::string_view what,
                                          DType dtype) const {
  const settings::ShardingSettings& asked = settings.sharding;
  if (asked.offload_optimizer == settings::OffloadDevice::nvme) {
    return swap->allocate_in_file(static_cast<std::size_t>(numel) * nbytes_of(dtype),
                                  asked.offload_optimizer_nvme_path, "offload_optimizer_nvme_path");
  }
  return allocate_working(numel, what, dtype);
}

device::MemoryPtr Context::allocate_offloaded_shard(std::size_t nbytes) const {
  const settings::ShardingSettings& asked = settings.sharding;
  return asked.offload_param == settings::OffloadDevice::nvme
             ? swap->allocate_in_file(nbytes, asked.offload_param_nvme_path,
                                      "offload_param_nvme_path")
             : device->allocate_host(nbytes, "weights");
}

device::MemoryPtr Context::copy_for_peers(const void* values, std::size_t nbytes,
                                          std::string_view what) const {
  const bool is_in_file = in_file(values);
  if (!is_in_file && !offload_optimizer()) {
    return nullptr;
  }
  device::MemoryPtr copy = device->allocate(nbytes, what);
  (is_in_file ? *updater : *device).copy(copy->data(), values, nbytes, device->compute());
  return copy;
}

device::MemoryPtr Context::allocate_working(std::int64_t numel, std::string_view what,
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
