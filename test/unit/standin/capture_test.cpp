// SPDX-License-Identifier: Apache-2.0
#include "device_array.hpp"
#include "handles.hpp"
#include "standin/cuda/standin.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

using namespace standin_test;

namespace {

void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  check(cudaStreamBeginCapture(stream, mode));
}

/// Appends `value` to `log` when the stream reaches this point.
void append(cudaStream_t stream, std::vector<int>& log, int value) {
  check(standin::enqueue(stream, [&log, value] { log.push_back(value); }));
}

/// Ends the capture and returns its graph, ready to be launched.
std::shared_ptr<CUgraphExec_st> end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0));
  check(cudaGraphDestroy(graph));
  return {executable, cudaGraphExecDestroy};
}

}  // namespace

TEST_CASE("captured work runs at each launch, in order, and not before") {
  const Stream stream;
  std::vector<int> log;
  begin(stream);
  append(stream, log, 1);
  append(stream, log, 2);
  const auto graph = end(stream);
  append(stream, log, 0);
  check(cudaGraphLaunch(graph.get(), stream));
  check(cudaGraphLaunch(graph.get(), stream));
  check(cudaStreamSynchronize(stream));
  CHECK(log == std::vector<int>{0, 1, 2, 1, 2});
}

TEST_CASE("events order the captured work of two streams; without them the order is random") {
  for (const bool waits : {true, false}) {
    CAPTURE(waits);
    const Stream first, second;
    const Event forked, produced, joined;
    std::vector<int> log;
    begin(first);
    check(cudaEventRecord(forked, first));
    check(cudaStreamWaitEvent(second, forked, 0));
    append(first, log, 1);
    check(cudaEventRecord(produced, first));
    if (waits) {
      check(cudaStreamWaitEvent(second, produced, 0));
    }
    append(second, log, 2);
    check(cudaEventRecord(joined, second));
    check(cudaStreamWaitEvent(first, joined, 0));
    const auto graph = end(first);
    int swapped = 0;
    for (int round = 0; round < 30; ++round) {
      log.clear();
      check(cudaGraphLaunch(graph.get(), first));
      check(cudaStreamSynchronize(first));
      REQUIRE(log.size() == 2);
      swapped += log.front() == 2 ? 1 : 0;
    }
    CHECK((swapped > 0) == !waits);
  }
}

TEST_CASE("calls that a capture prohibits return CUDA's error and invalidate it") {
  const DeviceArray<float> values(64);
  const Stream other;
  const Event outside;
  check(cudaEventRecord(outside, other));
  std::vector<float> pageable(64);
  void* address = nullptr;
  struct Case {
    const char* name;
    std::function<cudaError_t(cudaStream_t)> call;
    cudaError_t error;
    cudaError_t at_end = cudaErrorStreamCaptureInvalidated;
  };
  const Case cases[] = {
      {"wait for the stream", [](cudaStream_t s) { return cudaStreamSynchronize(s); },
       cudaErrorStreamCaptureUnsupported},
      {"query of the stream", [](cudaStream_t s) { return cudaStreamQuery(s); },
       cudaErrorStreamCaptureUnsupported},
      {"wait for another stream", [&](cudaStream_t) { return cudaStreamSynchronize(other); },
       cudaErrorStreamCaptureUnsupported},
      {"wait for the device", [](cudaStream_t) { return cudaDeviceSynchronize(); },
       cudaErrorStreamCaptureUnsupported},
      {"query of an event", [&](cudaStream_t) { return cudaEventQuery(outside); },
       cudaErrorStreamCaptureUnsupported},
      {"allocation", [&](cudaStream_t) { return cudaMalloc(&address, 256); },
       cudaErrorStreamCaptureUnsupported},
      {"page-locked memory", [&](cudaStream_t) { return cudaHostAlloc(&address, 256, 0); },
       cudaErrorStreamCaptureUnsupported},
      {"copy without a stream",
       [&](cudaStream_t) {
         return cudaMemcpy(pageable.data(), values.data(), 4, cudaMemcpyDefault);
       },
       cudaErrorStreamCaptureUnsupported},
      {"copy to pageable memory",
       [&](cudaStream_t s) {
         return cudaMemcpyAsync(pageable.data(), values.data(), 4, cudaMemcpyDefault, s);
       },
       cudaErrorStreamCaptureUnsupported},
      {"wait for uncaptured work",
       [&](cudaStream_t s) { return cudaStreamWaitEvent(s, outside, 0); },
       cudaErrorStreamCaptureIsolation},
      {"second capture",
       [](cudaStream_t s) { return cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed); },
       cudaErrorIllegalState, cudaSuccess},
      {"query of a captured event",
       [&](cudaStream_t s) {
         static Event captured;
         check(cudaEventRecord(captured, s));
         return cudaEventQuery(captured);
       },
       cudaErrorCapturedEvent, cudaSuccess},
      {"end in another thread",
       [](cudaStream_t s) {
         cudaError_t error = cudaSuccess;
         std::thread([&] {
           cudaGraph_t graph = nullptr;
           error = cudaStreamEndCapture(s, &graph);
         }).join();
         return error;
       },
       cudaErrorStreamCaptureWrongThread},
      {"a forked stream that does not come back",
       [&](cudaStream_t s) {
         static Event forked;
         check(cudaEventRecord(forked, s));
         check(cudaStreamWaitEvent(other, forked, 0));
         return cudaMemsetAsync(values.data(), 0, 4, other);
       },
       cudaSuccess, cudaErrorStreamCaptureUnjoined},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const Stream stream;
    begin(stream);
    CHECK(each.call(stream) == each.error);
    if (each.at_end == cudaErrorStreamCaptureInvalidated) {
      CHECK(cudaMemsetAsync(values.data(), 0, 4, stream) == cudaErrorStreamCaptureInvalidated);
    }
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == each.at_end);
    CHECK((graph != nullptr) == (each.at_end == cudaSuccess));
    check(cudaGraphDestroy(graph));
    check(cudaStreamSynchronize(stream));  // the stream is usable again
  }
}

TEST_CASE("the mode of a capture says which threads it restricts") {
  struct Case {
    cudaStreamCaptureMode mode;
    cudaError_t here, elsewhere;
  };
  for (const Case& each :
       {Case{cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported,
             cudaErrorStreamCaptureUnsupported},
        Case{cudaStreamCaptureModeThreadLocal, cudaErrorStreamCaptureUnsupported, cudaSuccess},
        Case{cudaStreamCaptureModeRelaxed, cudaSuccess, cudaSuccess}}) {
    CAPTURE(each.mode);
    const Event event;
    const Stream stream;
    const auto query = [&] { return cudaEventQuery(event); };
    for (const bool in_here : {true, false}) {
      begin(stream, each.mode);
      cudaError_t error = cudaSuccess;
      if (in_here) {
        error = query();
      } else {
        std::thread([&] { error = query(); }).join();
      }
      CHECK(error == (in_here ? each.here : each.elsewhere));
      cudaGraph_t graph = nullptr;
      (void)cudaStreamEndCapture(stream, &graph);
      check(cudaGraphDestroy(graph));
    }
  }
}

TEST_CASE("the default stream cannot be captured, nor wait for a captured blocking stream") {
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal) ==
        cudaErrorStreamCaptureUnsupported);
  const DeviceArray<float> values(64);
  const Stream blocking(cudaStreamDefault);
  begin(blocking);
  CHECK(cudaMemsetAsync(values.data(), 0, 4, nullptr) == cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureInvalidated);
}
