#pragma once

#include "acc/plugins/strategy.hpp"
#include "acc/runtime/reports.hpp"
#include "device/device.hpp"
#include "sharding/gradient_scaling.hpp"
#include "sharding/groups.hpp"
#include "sharding/policy.hpp"
#include "sharding/pools.hpp"
#include "sharding/schedule.hpp"
#include "sharding/view_guard.hpp"
#include "trace/tracer.hpp"

#include <memory>
#include <string_view>

namespace acc::sharding {

class GradientOffload;

/// State shared by all units of one model: settings, groups, devices, the schedule, the pools of
/// buffers and counters. Owned by ModelState, which makes the pools after the flat parameters,
/// because the size of a pooled buffer depends on the largest of them. One thread uses it.
///
/// Two kinds of pools: buffers that peers read or write (`gathers`, `secondary_gathers`,
/// `gradients`) are allocated collectively, so all ranks must acquire and release them in the same
/// order; scratch memory (`scratch`, `sums`) is local to this rank. A pool grows to the largest
/// number of buffers that were in use at once and keeps them until the model ends.
struct Engine {
  plugins::RuntimeSettings settings;
  plugins::StrategySwitches on;
  Groups groups;
  device::DevicePtr device;    ///< device on which the program computes
  device::DevicePtr updater;   ///< device of the optimizer: `device`, or the CPU if offloaded
  bool offload_param = false;  ///< between uses, shards lie in host memory next to a GPU
  device::StreamPtr fetches;   ///< stream that copies offloaded shards to the GPU; else null
  precision::PrecisionPolicy precision;
  GradientScaling gradient_scaling;
  std::unique_ptr<ViewGuard> guard;               ///< never null
  std::unique_ptr<Schedule> schedule;             ///< of all units
  std::unique_ptr<GatherLimiter> gather_limiter;  ///< limit_all_gathers; null: no limit
  std::unique_ptr<GatherPool> gathers;            ///< full weights of transient flat parameters
  std::unique_ptr<GatherPool> secondary_gathers;  ///< the same from secondary copies; may be null
  std::unique_ptr<GatherWindow> publications;     ///< gathers of updated weights after a step
  std::unique_ptr<GradientPool> gradients;        ///< whole gradients until they are reduced
  std::shared_ptr<GradientOffload> gradient_offload;  ///< null if the optimizer is not offloaded
  std::unique_ptr<ScratchPool> scratch;   ///< widened weights, gradients in the view dtype
  std::unique_ptr<ScratchPool> sums;      ///< float32 sums of gradients not reduced (no_sync)
  std::shared_ptr<trace::Tracer> tracer;  ///< null: no trace
  TrafficReport traffic;
  int no_grad_depth = 0;              ///< number of living no_grad objects
  int no_sync_depth = 0;              ///< number of living no_sync objects
  std::int64_t gradients_closed = 0;  ///< micro-steps of flat parameters that have ended so far

  [[nodiscard]] bool offload_optimizer() const noexcept { return updater != device; }
  /// True with fp16: gradients carry a loss scale, and an overflow is expected from time to time.
  [[nodiscard]] bool scales_loss() const noexcept {
    return settings.sharding.mixed_precision == plugins::MixedPrecision::fp16;
  }
  /// True if a step must be able to name the rank, unit and micro-step of a non-finite gradient.
  [[nodiscard]] bool watches_gradients() const noexcept {
    return settings.sharding.nan_policy == plugins::NanPolicy::raise && !scales_loss();
  }
  /// Allocates memory, filled with zeros, that the updater can access: for master weights, moments
  /// and reduced gradients. what: name for memory reports.
  [[nodiscard]] device::MemoryPtr allocate_state(std::int64_t numel, std::string_view what,
                                                 DType dtype = DType::float32) const;
  /// Orders the updater after the work issued to the compute stream so far. Blocks the host if the
  /// optimizer is offloaded; otherwise the stream itself keeps the order.
  void await_compute() const;
};

}  // namespace acc::sharding
