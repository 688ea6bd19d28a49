// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/capture.hpp"

#include <algorithm>
#include <mutex>
#include <thread>

namespace standin {

/// State of one capture, guarded by the mutex of all captures.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  StreamPtr origin;
  bool invalid = false;
  std::vector<Node> nodes;
  /// Streams of the capture, with the nodes that the stream's next work must follow.
  std::vector<std::pair<StreamPtr, std::vector<std::size_t>>> streams;
};

namespace {

struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> active;
};

Captures& captures() {
  static auto* const all = new Captures;
  return *all;
}

thread_local cudaStreamCaptureMode threads_mode = cudaStreamCaptureModeGlobal;

/// Place of a stream in its capture.
struct Place {
  std::shared_ptr<Capture> capture;  ///< null: the stream is not capturing
  std::vector<std::size_t>* tail = nullptr;
};

// All of these require the mutex.

Place place_of(const StreamPtr& stream) {
  for (const auto& capture : captures().active) {
    for (auto& [member, tail] : capture->streams) {
      if (member == stream) {
        return {capture, &tail};
      }
    }
  }
  return {};
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return error;
}

/// True if everything that the streams have captured comes before the end of the origin.
bool all_joined(const Capture& capture) {
  std::vector<bool> reached(capture.nodes.size(), false);
  std::vector<std::size_t> open;
  for (const auto& [stream, tail] : capture.streams) {
    if (stream == capture.origin) {
      open = tail;
    }
  }
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (!reached[node]) {
      reached[node] = true;
      const auto& after = capture.nodes[node].after;
      open.insert(open.end(), after.begin(), after.end());
    }
  }
  return std::ranges::all_of(capture.streams, [&](const auto& member) {
    return std::ranges::all_of(member.second, [&](std::size_t node) { return reached[node]; });
  });
}

}  // namespace

cudaError_t begin_capture(const StreamPtr& stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(captures().mutex);
  if (stream == default_stream(stream->device)) {
    return cudaErrorStreamCaptureUnsupported;
  }
  if (place_of(stream).capture != nullptr) {
    return cudaErrorIllegalState;
  }
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->streams.push_back({stream, {}});
  captures().active.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t end_capture(const StreamPtr& stream, std::vector<Node>& nodes) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  if (place.capture == nullptr) {
    return cudaErrorIllegalState;
  }
  Capture& capture = *place.capture;
  if (stream != capture.origin) {
    return invalidate(capture, cudaErrorStreamCaptureUnmatched);
  }
  if (capture.mode != cudaStreamCaptureModeRelaxed &&
      capture.thread != std::this_thread::get_id()) {
    return invalidate(capture, cudaErrorStreamCaptureWrongThread);
  }
  std::erase(captures().active, place.capture);
  if (capture.invalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  if (!all_joined(capture)) {
    return cudaErrorStreamCaptureUnjoined;
  }
  nodes = std::move(capture.nodes);
  return cudaSuccess;
}

cudaStreamCaptureStatus capture_status(const StreamPtr& stream) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  return place.capture == nullptr ? cudaStreamCaptureStatusNone
         : place.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
}

bool capture_work(const StreamPtr& stream, const std::function<bool()>& step) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  if (place.capture == nullptr) {
    return false;
  }
  place.capture->nodes.push_back({step, *place.tail});
  *place.tail = {place.capture->nodes.size() - 1};
  return true;
}

CapturedPoint captured_point(const StreamPtr& stream) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  return place.capture == nullptr ? CapturedPoint{} : CapturedPoint{place.capture, *place.tail};
}

cudaError_t wait_captured(const StreamPtr& stream, const CapturedPoint& point, bool from_event) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  if (point.capture == nullptr) {
    // A graph cannot wait for work outside of it.
    return place.capture == nullptr || !from_event
               ? cudaSuccess
               : invalidate(*place.capture, cudaErrorStreamCaptureIsolation);
  }
  if (std::ranges::find(captures().active, point.capture) == captures().active.end()) {
    return cudaErrorCapturedEvent;
  }
  if (place.capture != nullptr && place.capture != point.capture) {
    return invalidate(*place.capture, cudaErrorStreamCaptureMerge);
  }
  if (place.capture == nullptr) {
    point.capture->streams.push_back({stream, point.nodes});
  } else {
    place.tail->insert(place.tail->end(), point.nodes.begin(), point.nodes.end());
  }
  return cudaSuccess;
}

cudaError_t may_issue(const StreamPtr& stream) {
  const std::lock_guard lock(captures().mutex);
  const Place place = place_of(stream);
  if (place.capture != nullptr) {
    return place.capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  if (stream == default_stream(stream->device)) {
    // The default stream would have to wait for the captured work of blocking streams.
    for (const auto& capture : captures().active) {
      for (const auto& [member, tail] : capture->streams) {
        if (member->device == stream->device && member->blocking) {
          return invalidate(*capture, cudaErrorStreamCaptureImplicit);
        }
      }
    }
  }
  return cudaSuccess;
}

cudaError_t may_wait(const StreamPtr& stream) {
  {
    const std::lock_guard lock(captures().mutex);
    const Place place = place_of(stream);
    if (place.capture != nullptr) {
      return invalidate(*place.capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return may_call_unsafe();
}

cudaError_t may_call_unsafe() {
  const std::lock_guard lock(captures().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures().active) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool prohibited = own ? threads_mode != cudaStreamCaptureModeRelaxed &&
                                      capture->mode != cudaStreamCaptureModeRelaxed
                                : threads_mode == cudaStreamCaptureModeGlobal &&
                                      capture->mode == cudaStreamCaptureModeGlobal;
    if (prohibited) {
      result = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return result;
}

void exchange_capture_mode(cudaStreamCaptureMode& mode) {
  std::swap(threads_mode, mode);
}

}  // namespace standin
