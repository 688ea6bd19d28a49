// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/cuda/devices.hpp"
#include "standin/cuda/streams.hpp"

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <vector>

/// Stream capture: work of a capturing stream becomes nodes of a graph and runs when the graph is
/// launched. Calls that CUDA prohibits during a capture return its errors and invalidate the
/// capture. Safe to call from all threads.
namespace standin {

struct Node {
  std::function<bool()> step;
  std::vector<std::size_t> after;  ///< nodes that must have run
};

struct Capture;

/// A point in a capture: after these nodes. Of no capture if `capture` is null.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> nodes;
};

cudaError_t begin_capture(const StreamPtr& stream, cudaStreamCaptureMode mode);
/// Ends the capture that began on `stream`. Its nodes are in an order that their dependencies
/// allow.
cudaError_t end_capture(const StreamPtr& stream, std::vector<Node>& nodes);
cudaStreamCaptureStatus capture_status(const StreamPtr& stream);

/// Records `step` if the stream is capturing; returns false if it is not.
bool capture_work(const StreamPtr& stream, const std::function<bool()>& step);
/// Point after everything that the stream has captured.
CapturedPoint captured_point(const StreamPtr& stream);
/// Makes later work of `stream` wait for a point of a capture, which the stream joins. from_event:
/// an event that was recorded at least once.
cudaError_t wait_captured(const StreamPtr& stream, const CapturedPoint& point, bool from_event);

/// Error of a call that would queue work on `stream`; cudaSuccess if it may.
cudaError_t may_issue(const StreamPtr& stream);
/// Error of a call that waits for `stream` or asks for its progress.
cudaError_t may_wait(const StreamPtr& stream);
/// Error of a call that CUDA calls potentially unsafe, such as cudaMalloc, for the captures that
/// are in progress and their modes (cudaThreadExchangeStreamCaptureMode).
cudaError_t may_call_unsafe();
/// Exchanges the calling thread's mode with `mode`.
void exchange_capture_mode(cudaStreamCaptureMode& mode);

/// `api_call` of a potentially unsafe function.
template <typename Body>
cudaError_t unsafe_api_call(const char* name, Body&& body) {
  return api_call(name, [&] {
    const cudaError_t error = may_call_unsafe();
    return error != cudaSuccess ? error : body();
  });
}

}  // namespace standin
