#pragma once

#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

namespace acc::cuda {

/// Events are made once and used again. Any thread.
class EventPool {
 public:
  explicit EventPool(int device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take(bool timed);
  void give_back(cudaEvent_t event, bool timed) noexcept;

 private:
  int device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> plain_;
  std::vector<cudaEvent_t> timed_;
};

/// A moment that the GPU's clock and the host's steady clock both know.
struct ClockAnchor {
  ClockAnchor(std::shared_ptr<EventPool> pool, cudaStream_t idle_stream, int device);
  ~ClockAnchor();
  ClockAnchor(const ClockAnchor&) = delete;
  ClockAnchor& operator=(const ClockAnchor&) = delete;

  std::shared_ptr<EventPool> pool;
  cudaEvent_t event;
  double host_microseconds;
};

class CudaEvent final : public device::Event {
 public:
  /// Records the point that `stream` has come to. `anchor`: null unless it is to be timed.
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
