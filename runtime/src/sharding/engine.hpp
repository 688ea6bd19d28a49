#pragma once

#include "acc/plugins/strategy.hpp"
#include "acc/runtime/reports.hpp"
#include "device/device.hpp"
#include "precision/policy.hpp"
#include "sharding/gradient_scaling.hpp"
#include "sharding/groups.hpp"
#include "sharding/pools.hpp"
#include "sharding/schedule.hpp"
#include "sharding/view_guard.hpp"
#include "trace/tracer.hpp"

#include <memory>
#include <string_view>

namespace acc::sharding {

class GradientOffload;

/// What all units of a model share.
struct Engine {
  plugins::RuntimeSettings settings;
  plugins::StrategySwitches on;
  Groups groups;
  device::DevicePtr device;    ///< where the program computes
  device::DevicePtr updater;   ///< where the optimizer does: the same, or the CPU beside a GPU
  bool offload_param = false;  ///< between uses, shards lie in host memory beside a GPU
  device::StreamPtr fetches;   ///< on which they come from there; null where they do not
  precision::PrecisionPolicy precision;
  GradientScaling gradient_scaling;
  std::unique_ptr<ViewGuard> guard;               ///< never null
  std::unique_ptr<Schedule> schedule;             ///< of all units
  std::unique_ptr<GatherLimiter> gather_limiter;  ///< null: no limit
  std::unique_ptr<GatherPool> gathers;
  std::unique_ptr<GatherPool> secondary_gathers;  ///< null without secondary copies
  std::unique_ptr<GatherWindow> publications;
  std::unique_ptr<GradientPool> gradients;
  std::shared_ptr<GradientOffload> gradient_offload;  ///< null where nothing is offloaded
  std::unique_ptr<ScratchPool> scratch;
  std::unique_ptr<ScratchPool> sums;      ///< float32, of gradients that no_sync lets wait
  std::shared_ptr<trace::Tracer> tracer;  ///< null: no trace
  TrafficReport traffic;
  int no_grad_depth = 0;
  int no_sync_depth = 0;
  std::int64_t gradients_closed = 0;  ///< micro-steps of flat parameters that have ended

  [[nodiscard]] bool offload_optimizer() const noexcept { return updater != device; }
  /// With fp16 an overflow has its own rules.
  [[nodiscard]] bool scales_loss() const noexcept {
    return settings.sharding.mixed_precision == plugins::MixedPrecision::fp16;
  }
  /// Whether a step must be able to tell whose gradient was not finite.
  [[nodiscard]] bool watches_gradients() const noexcept {
    return settings.sharding.nan_policy == plugins::NanPolicy::raise && !scales_loss();
  }
  /// Zeroed memory for master weights, moments and reduced gradients: the updater's.
  [[nodiscard]] device::MemoryPtr allocate_state(std::int64_t numel, std::string_view what,
                                                 DType dtype = DType::float32) const;
  /// Orders the updater after what was issued to the compute stream. Blocks where it is the CPU
  /// beside a GPU.
  void await_compute() const;
};

}  // namespace acc::sharding
