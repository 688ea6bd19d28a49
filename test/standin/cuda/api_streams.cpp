// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/capture.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/streams.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

using namespace standin;

struct CUevent_st {
  unsigned flags = 0;
  int device = 0;
  Ticket ticket;                            ///< point of the last cudaEventRecord
  CapturedPoint captured;                   ///< that point, if it is in a capture
  std::shared_ptr<Clock::time_point> when;  ///< time it was reached; null before the first record
};

namespace {

/// Handles that have not been destroyed.
template <typename Handle>
class Handles {
 public:
  void add(Handle handle) {
    const std::lock_guard lock(mutex_);
    live_.insert(handle);
  }
  bool contains(Handle handle) {
    const std::lock_guard lock(mutex_);
    return live_.contains(handle);
  }
  bool remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    return live_.erase(handle) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<Handle> live_;
};

Handles<cudaStream_t>& streams() {
  static auto* const handles = new Handles<cudaStream_t>;
  return *handles;
}
Handles<cudaEvent_t>& events() {
  static auto* const handles = new Handles<cudaEvent_t>;
  return *handles;
}

/// Errors of completed work are reported by the next call that waits for it or polls it.
cudaError_t outcome(int device) {
  return device_fault(device);
}

template <typename Body>
cudaError_t stream_call(const char* name, cudaStream_t handle, Body&& body) {
  return api_call(name, [&] {
    const StreamPtr stream = stream_of(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(stream);
  });
}

/// A call that waits for a stream or asks for its progress.
template <typename Body>
cudaError_t progress_call(const char* name, cudaStream_t handle, Body&& body) {
  return stream_call(name, handle, [&](const StreamPtr& stream) {
    const cudaError_t error = may_wait(stream);
    return error != cudaSuccess ? error : body(stream);
  });
}

template <typename Body>
cudaError_t event_call(const char* name, cudaEvent_t event, Body&& body) {
  return api_call(
      name, [&] { return events().contains(event) ? body() : cudaErrorInvalidResourceHandle; });
}

/// Does the same for an event, which must not have been recorded in a capture.
template <typename Body>
cudaError_t event_progress_call(const char* name, cudaEvent_t event, Body&& body) {
  return event_call(name, event, [&] {
    if (event->captured.capture != nullptr) {
      return cudaErrorCapturedEvent;
    }
    const cudaError_t error = may_call_unsafe();
    return error != cudaSuccess ? error : body();
  });
}

cudaError_t create_stream(cudaStream_t* handle, unsigned flags) {
  const bool blocking = (flags & cudaStreamNonBlocking) == 0;
  *handle = new CUstream_st{make_stream(current_device(), blocking)};
  streams().add(*handle);
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{flags, current_device(), {}, {}, nullptr};
  events().add(*event);
  return cudaSuccess;
}

cudaError_t elapsed(float* milliseconds, const CUevent_st& start, const CUevent_st& stop) {
  const bool untimed = ((start.flags | stop.flags) & cudaEventDisableTiming) != 0;
  if (untimed || start.when == nullptr || stop.when == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!reached(start.ticket) || !reached(stop.ticket)) {
    return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*stop.when - *start.when).count();
  return cudaSuccess;
}

}  // namespace

StreamPtr standin::stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return default_stream(current_device());
  }
  return streams().contains(handle) ? handle->stream : nullptr;
}

namespace {

std::atomic<long> host_waits = 0;

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return api_call("cudaStreamCreateWithPriority", [&] { return create_stream(stream, flags); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api_call("cudaStreamCreateWithFlags", [&] { return create_stream(stream, flags); });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return api_call("cudaStreamCreate", [&] { return create_stream(stream, cudaStreamDefault); });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return api_call("cudaStreamDestroy", [&] {
    if (!streams().remove(handle)) {
      return cudaErrorInvalidResourceHandle;
    }
    forget_stream(handle->stream);
    delete handle;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ++host_waits;
  return progress_call("cudaStreamSynchronize", handle, [](const StreamPtr& stream) {
    wait(now(stream));
    return outcome(stream->device);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return progress_call("cudaStreamQuery", handle, [](const StreamPtr& stream) {
    return poll(now(stream)) ? outcome(stream->device) : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return stream_call("cudaStreamWaitEvent", handle, [event](const StreamPtr& stream) {
    if (!events().contains(event)) {
      return cudaErrorInvalidResourceHandle;
    }
    const bool recorded = event->when != nullptr;
    if (const cudaError_t error = wait_captured(stream, event->captured, recorded);
        error != cudaSuccess) {
      return error;
    }
    if (capture_status(stream) == cudaStreamCaptureStatusNone) {
      enqueue(stream, [] { return true; }, {event->ticket});
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return stream_call("cudaStreamGetPriority", handle, [priority](const StreamPtr&) {
    *priority = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return stream_call("cudaLaunchHostFunc", handle, [=](const StreamPtr& stream) {
    if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
      return error;
    }
    count_call();
    enqueue(stream, [=] {
      inside_host_function() = true;
      function(data);
      inside_host_function() = false;
      return true;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api_call("cudaEventCreateWithFlags", [&] { return create_event(event, flags); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return api_call("cudaEventCreate", [&] { return create_event(event, cudaEventDefault); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api_call("cudaEventDestroy", [&] {
    if (!events().remove(event)) {
      return cudaErrorInvalidResourceHandle;
    }
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return event_call("cudaEventRecord", event, [&] {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr || stream->device != event->device) {
      return cudaErrorInvalidResourceHandle;
    }
    if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
      return error;
    }
    event->when = std::make_shared<Clock::time_point>();
    event->captured = captured_point(stream);
    if (event->captured.capture != nullptr) {
      event->ticket = {};
      return cudaSuccess;
    }
    event->ticket = enqueue(stream, [when = event->when] {
      *when = Clock::now();
      return true;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event_progress_call("cudaEventQuery", event, [&] {
    return poll(event->ticket) ? outcome(event->device) : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++host_waits;
  return event_progress_call("cudaEventSynchronize", event, [&] {
    wait(event->ticket);
    return outcome(event->device);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  return event_call("cudaEventElapsedTime", start, [&] {
    return events().contains(stop) ? elapsed(milliseconds, *start, *stop)
                                   : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaDeviceSynchronize() {
  ++host_waits;
  return unsafe_api_call("cudaDeviceSynchronize", [] {
    wait_for_device(current_device());
    return outcome(current_device());
  });
}

__attribute__((visibility("default"))) long acc_standin_host_waits() {
  return host_waits;
}

}  // extern "C"
