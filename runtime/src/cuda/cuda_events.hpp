// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

namespace acc::cuda {

/// Pool of CUDA events, because creating one costs more than recording it. Any thread.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// Returns an event that no one else uses. `timed`: with timing, which makes recording slower.
  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed) noexcept;

 private:
  int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> plain_;
  std::vector<cudaEvent_t> timed_;
};

/// A point in time measured by both the GPU's clock and the host's steady clock. CUDA only gives
/// the time between two events; with an anchor, the time of an event can be given in the host's
/// clock.
struct ClockAnchor {
  /// Records an event on `idle_stream`, which must have no work, and waits for it.
  ClockAnchor(std::shared_ptr<EventPool> pool, cudaStream_t idle_stream, int device);
  ~ClockAnchor();
  ClockAnchor(const ClockAnchor&) = delete;
  ClockAnchor& operator=(const ClockAnchor&) = delete;

  std::shared_ptr<EventPool> pool;
  cudaEvent_t event;
  double host_microseconds;
};

/// An event of the pool, returned to it at the end. Any thread may query it.
class CudaEvent final : public device::Event {
 public:
  /// Records an event after all work issued to `stream`. `anchor`: null if the event is not timed.
  CudaEvent(std::shared_ptr<EventPool> pool, std::shared_ptr<const ClockAnchor> anchor,
            cudaStream_t stream, int device);
  ~CudaEvent() override;
  bool done() const override;
  void synchronize() const override;
  double microseconds() const override;
  [[nodiscard]] cudaEvent_t native() const noexcept { return event_; }

 private:
  void bind() const;

  std::shared_ptr<EventPool> pool_;
  std::shared_ptr<const ClockAnchor> anchor_;
  int device_;
  cudaEvent_t event_;
};

}  // namespace acc::cuda
