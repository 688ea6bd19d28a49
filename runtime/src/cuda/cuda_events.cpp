// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_events.hpp"

#include "acc/base/error.hpp"
#include "cuda/cuda_error.hpp"
#include "device/host_clock.hpp"

namespace acc::cuda {

// Events hold a reference to the pool, so all of them have been returned here.
EventPool::~EventPool() {
  for (const auto* events : {&plain_, &timed_}) {
    for (cudaEvent_t event : *events) {
      (void)cudaEventDestroy(event);
    }
  }
}

cudaEvent_t EventPool::take(bool timed) {
  {
    const std::lock_guard lock(mutex_);
    auto& events = timed ? timed_ : plain_;
    if (!events.empty()) {
      cudaEvent_t event = events.back();
      events.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags", device_);
  return event;
}

void EventPool::give_back(cudaEvent_t event, bool timed) noexcept {
  const std::lock_guard lock(mutex_);
  (timed ? timed_ : plain_).push_back(event);
}

// Takes the best of five measurements: the one during which the least time passed on the host. The
// error of the anchor is at most half of that time.
ClockAnchor::ClockAnchor(std::shared_ptr<EventPool> events, cudaStream_t idle_stream, int device)
    : pool(std::move(events)), event(nullptr), host_microseconds(0.0) {
  double narrowest = 0.0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    cudaEvent_t candidate = pool->take(true);
    const double before = device::host_microseconds();
    check(cudaEventRecord(candidate, idle_stream), "cudaEventRecord", device);
    check(cudaEventSynchronize(candidate), "cudaEventSynchronize", device);
    const double width = device::host_microseconds() - before;
    if (event != nullptr && width >= narrowest) {
      pool->give_back(candidate, true);
      continue;
    }
    if (event != nullptr) {
      pool->give_back(event, true);
    }
    event = candidate;
    narrowest = width;
    host_microseconds = before + width / 2;
  }
}

ClockAnchor::~ClockAnchor() {
  pool->give_back(event, true);
}

CudaEvent::CudaEvent(std::shared_ptr<EventPool> pool, std::shared_ptr<const ClockAnchor> anchor,
                     cudaStream_t stream, int device)
    : pool_(std::move(pool)),
      anchor_(std::move(anchor)),
      device_(device),
      event_(pool_->take(anchor_ != nullptr)) {
  // A constructor that throws runs no destructor, so the event is returned here.
  const cudaError_t status = cudaEventRecord(event_, stream);
  if (status != cudaSuccess) {
    pool_->give_back(event_, anchor_ != nullptr);
    check(status, "cudaEventRecord", device);
  }
}

CudaEvent::~CudaEvent() {
  pool_->give_back(event_, anchor_ != nullptr);
}

// The current device is a property of the thread. A thread that has not set it, such as the NCCL
// watch, would create a context on GPU 0 at its first call, which takes about half a GiB.
void CudaEvent::bind() const {
  check(cudaSetDevice(device_), "cudaSetDevice", device_);
}

bool CudaEvent::done() const {
  bind();
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // clears it: not an error
    return false;
  }
  check(status, "cudaEventQuery", device_);
  return true;
}

void CudaEvent::synchronize() const {
  bind();
  check(cudaEventSynchronize(event_), "cudaEventSynchronize", device_);
}

double CudaEvent::microseconds() const {
  if (anchor_ == nullptr) {
    throw Error(Errc::internal, "an event was asked for its time but recorded without timing");
  }
  float milliseconds = 0.0F;
  check(cudaEventElapsedTime(&milliseconds, anchor_->event, event_), "cudaEventElapsedTime",
        device_);
  return anchor_->host_microseconds + 1000.0 * static_cast<double>(milliseconds);
}

}  // namespace acc::cuda
