// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/reports.hpp"
#include "acc/runtime/types.hpp"
#include "acc/settings/strategy.hpp"
#include "device/device.hpp"
#include "sharding/groups.hpp"
#include "sharding/policy.hpp"
#include "sharding/unit_uses.hpp"
#include "sharding/view_guard.hpp"
#include "swap/swap_device.hpp"
#include "trace/tracer.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace acc::sharding {

/// Factors that turn a sum over ranks and gradient_accumulation_steps micro-steps into the mean:
/// `before` multiplies a rank's gradient before the reduction, `after` multiplies the sum. After
/// fewer micro-steps the step multiplies the reduced gradient (ModelState::mean_correction).
struct GradientScaling {
  float before = 1.0F;
  float after = 1.0F;
};

/// reduced: dtype in which gradients are sent. With float16, whose largest number is 65504, part of
/// the division comes before the sum, with FSDP's factor: starting at 1 it is doubled while it
/// divides world_size and its square is below world_size.
GradientScaling scale_gradients(int world_size, int micro_steps, DType reduced);

/// How numbers are sent to other machines. A sum that each rank needs a part of is sent once, and
/// so is rounded once; one that every rank needs is rounded again when it is passed on.
struct SentCodes {
  BlockCode weights;
  BlockCode gradients;            ///< in a reduce_scatter
  BlockCode gradients_of_copies;  ///< in an all_reduce: of whole gradients, or between replicas
};

/// ZeRO++ (arXiv 2306.10209) sends weights in 8 bits and gradients in 4, SDP4Bit (arXiv 2410.15526)
/// rotates gradients before they are rounded.
SentCodes sent_codes(const settings::ShardingSettings& settings);

/// The name of a unit in messages, traces and reports: that of a root without a name is "root".
inline std::string unit_label(const std::string& name) {
  return name.empty() ? "root" : name;
}

/// Settings, groups and devices of one model. Complete before the first unit is made and constant
/// afterwards, but for this rank's identity and the plan of the groups when the ranks rejoin their
/// job. Owned by ModelState; outlives the pools, the units and the optimizer.
struct Context {
  settings::RuntimeSettings settings;
  settings::StrategySwitches on;  ///< those of GroupPlan
  Groups groups;
  device::DevicePtr device;  ///< device on which the program computes
  device::DevicePtr
      updater;  ///< device of the optimizer: `device`, `swap`, or the CPU if offloaded
  std::shared_ptr<swap::SwapDevice> swap;  ///< offload to NVMe; null: nothing is in files
  device::StreamPtr fetches;  ///< copies offloaded shards to the GPU; null: not offloaded
  PrecisionPolicy precision;
  SentCodes codes;
  bool by_rows = false;                   ///< ModelOptions::by_rows
  std::unique_ptr<ViewGuard> guard;       ///< never null
  std::shared_ptr<trace::Tracer> tracer;  ///< null: no trace

  /// True if `ModelState::publish` tells the peers of all new weights at once: they see them where
  /// they are.
  [[nodiscard]] bool announces_together() const noexcept {
    return by_rows && groups.shard->shares_gathered_memory() && !offload_param();
  }
  /// True if the optimizer's state lies in host memory next to a GPU.
  [[nodiscard]] bool offload_optimizer() const noexcept {
    return updater->kind() != device->kind();
  }
  /// True if shards lie elsewhere than the gathered weights between uses: in host memory next to a
  /// GPU, or in a file.
  [[nodiscard]] bool offload_param() const noexcept { return fetches != nullptr; }
  /// True if reductions run while the program computes.
  [[nodiscard]] bool overlaps() const noexcept { return settings.sharding.overlap_comm; }
  /// True with fp16: gradients carry a loss scale, and an overflow is expected from time to time.
  [[nodiscard]] bool scales_loss() const noexcept {
    return settings.sharding.mixed_precision == settings::MixedPrecision::fp16;
  }
  /// True if a step must be able to name the rank, unit and micro-step of a non-finite gradient.
  [[nodiscard]] bool watches_gradients() const noexcept {
    return settings.sharding.nan_policy == settings::NanPolicy::raise && !scales_loss();
  }
  /// Allocates memory, filled with zeros, that the updater can access: for master weights, moments
  /// and gradients. With offload of the optimizer to NVMe it is in a file. what: name for memory
  /// reports.
  [[nodiscard]] device::MemoryPtr allocate_state(std::int64_t numel, std::string_view what,
                                                 DType dtype = DType::float32) const;
  /// The same, never in a file: for reduced gradients and directions.
  [[nodiscard]] device::MemoryPtr allocate_working(std::int64_t numel, std::string_view what,
                                                   DType dtype = DType::float32) const;
  /// Allocates the memory of a shard that is offloaded, for weights between uses.
  [[nodiscard]] device::MemoryPtr allocate_offloaded_shard(std::size_t nbytes) const;
  /// True if reduced gradients lie in a file, beside weights and moments. Those of replicas do not:
  /// they are summed once per step.
  [[nodiscard]] bool gradients_in_file() const noexcept {
    constexpr auto kNvme = settings::OffloadDevice::nvme;
    return settings.sharding.offload_optimizer == kNvme &&
           settings.sharding.offload_param == kNvme && !groups.replicate;
  }
  /// True for memory of the updater that lies in a file.
  [[nodiscard]] bool in_file(const void* values) const {
    return swap && !swap->host_can_use(values);
  }
  /// Copies values of the updater, [nbytes], to memory of the device from which peers gather. Null
  /// if they can gather from `values`.
  [[nodiscard]] device::MemoryPtr copy_for_peers(const void* values, std::size_t nbytes,
                                                 std::string_view what) const;
  /// Orders the updater after the work issued to the compute stream so far. Blocks the host if the
  /// optimizer is offloaded; otherwise the stream itself keeps the order.
  void await_compute() const;
};

/// Numbers that change while a model runs. One thread uses them.
struct Counters {
  TrafficReport traffic;
  int no_grad_depth = 0;              ///< number of living no_grad objects
  int no_sync_depth = 0;              ///< number of living no_sync objects
  UnitUses uses;                      ///< of the model: the sum over the declared units
  std::int64_t gradients_closed = 0;  ///< gradients of flat parameters that were complete so far
};

}  // namespace acc::sharding
