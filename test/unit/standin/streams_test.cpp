// SPDX-License-Identifier: Apache-2.0
#include "device_array.hpp"
#include "handles.hpp"
#include "kernels.hpp"
#include "standin/cuda/standin.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

using namespace standin_test;

namespace {

constexpr int kRounds = 30;  // enough that a wrong order does not give the right result every time

/// Appends `value` to `log` when the stream reaches this point.
void append(cudaStream_t stream, std::vector<int>& log, int value) {
  check(standin::enqueue(stream, [&log, value] { log.push_back(value); }));
}

/// One stream fills values with ones, another doubles them and adds one. The result is 3 if the
/// order is kept.
float produce_then_consume(bool with_event) {
  const DeviceArray<float> values(64);
  const Stream producer;
  const Stream consumer;
  const Event produced;
  check(cudaMemsetAsync(values.data(), 0, 64 * sizeof(float), producer));
  check(scale_add({.threads = 64, .stream = producer}, values.data(), 64, 1.0F));
  if (with_event) {
    check(cudaEventRecord(produced, producer));
    check(cudaStreamWaitEvent(consumer, produced, 0));
  }
  check(scale_add({.threads = 64, .stream = consumer}, values.data(), 64, 2.0F));
  return values.read().front();
}

}  // namespace

TEST_CASE("work of one stream runs in order") {
  const Stream stream;
  std::vector<int> log;
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  for (const int i : expected) {
    append(stream, log, i);
  }
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(log == expected);
}

TEST_CASE("an event orders two streams") {
  for (int round = 0; round < kRounds; ++round) {
    CHECK(produce_then_consume(/*with_event=*/true) == 3.0F);
  }
}

TEST_CASE("a missing event shows as a wrong result") {
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    wrong += produce_then_consume(/*with_event=*/false) != 3.0F ? 1 : 0;
  }
  CHECK(wrong > 0);
}

TEST_CASE("an event covers the work before its last record") {
  const Stream first;
  const Stream second;
  const Event event;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> log;
    append(first, log, 1);
    check(cudaEventRecord(event, first));
    append(first, log, 2);
    check(cudaEventRecord(event, first));
    check(cudaStreamWaitEvent(second, event, 0));
    check(cudaEventRecord(event, second));  // does not change the earlier wait
    append(second, log, 3);
    check(cudaDeviceSynchronize());
    CHECK(log == std::vector{1, 2, 3});
  }
}

TEST_CASE("an event that was never recorded is complete") {
  const Event event;
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
}

TEST_CASE("the default stream is ordered with blocking streams") {
  const Stream blocking(cudaStreamDefault);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> log;
    append(blocking, log, 1);
    append(nullptr, log, 2);
    append(blocking, log, 3);
    check(cudaDeviceSynchronize());
    CHECK(log == std::vector{1, 2, 3});
  }
}

TEST_CASE("the default stream is not ordered with the others") {
  const Stream other;
  int swapped = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> log;
    append(other, log, 1);
    append(nullptr, log, 2);
    check(cudaDeviceSynchronize());
    swapped += log == std::vector{2, 1} ? 1 : 0;
  }
  CHECK(swapped > 0);
}

TEST_CASE("work that no thread waits for runs after a delay") {
  const Stream stream;
  std::promise<void> done;
  check(standin::enqueue(stream, [&done] { done.set_value(); }));
  done.get_future().wait();
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("repeated polling completes the work") {
  const Stream stream;
  const Event event;
  std::atomic<int> steps = 0;
  for (int i = 0; i < 10; ++i) {
    check(standin::enqueue(stream, [&steps] { ++steps; }));
  }
  check(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
    std::this_thread::yield();
  }
  CHECK(steps == 10);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

TEST_CASE("work that is not complete lets other streams run") {
  const Stream waiting;
  const Stream setting;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<bool> set = false;
    check(standin::enqueue_poll(waiting, [&set] { return set.load(); }));
    check(standin::enqueue(setting, [&set] { set = true; }));
    CHECK(cudaStreamSynchronize(waiting) == cudaSuccess);
    CHECK(set);
  }
}

TEST_CASE("a stream that is destroyed finishes its work first") {
  std::promise<void> done;
  {
    const Stream stream;
    check(standin::enqueue(stream, [&done] { done.set_value(); }));
  }
  done.get_future().wait();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("ranks that are threads, on one device or two, wait for each other in their streams") {
  for (const int devices : {1, 2}) {
    CAPTURE(devices);
    std::atomic<int> arrived = 0;
    const auto rank = [&](int number) {
      check(cudaSetDevice(number % devices));
      const Stream stream;
      check(standin::enqueue(stream, [&] { ++arrived; }));
      check(standin::enqueue_poll(stream, [&] { return arrived == 2; }));
      check(cudaStreamSynchronize(stream));
    };
    std::jthread other(rank, 1);
    rank(0);
    other.join();
    CHECK(arrived == 2);
  }
}

TEST_CASE("CUDA's functions are not allowed in a host function") {
  cudaError_t inside = cudaSuccess;
  check(cudaLaunchHostFunc(
      nullptr, [](void* error) { *static_cast<cudaError_t*>(error) = cudaDeviceSynchronize(); },
      &inside));
  check(cudaDeviceSynchronize());
  CHECK(inside == cudaErrorNotPermitted);
}

TEST_CASE("a copy reads pageable memory at the call and page-locked memory when it runs") {
  const Stream stream;
  std::array<int, 2> pageable{1, 1};
  std::array<int, 2> pinned{1, 1};
  check(cudaHostRegister(pinned.data(), sizeof pinned, cudaHostRegisterDefault));
  const DeviceArray<int> out(2);
  std::atomic<bool> written = false;
  check(standin::enqueue_poll(stream, [&written] { return written.load(); }));
  check(cudaMemcpyAsync(out.data(), pageable.data(), 4, cudaMemcpyHostToDevice, stream));
  check(cudaMemcpyAsync(out.data() + 1, pinned.data(), 4, cudaMemcpyHostToDevice, stream));
  pageable[0] = 2;
  pinned[0] = 2;
  written = true;
  CHECK(out.read() == std::vector{1, 2});
  CHECK(cudaHostUnregister(pinned.data()) == cudaSuccess);
  CHECK(cudaHostUnregister(pinned.data()) == cudaErrorHostMemoryNotRegistered);
}

TEST_CASE("the time between two events") {
  const Stream stream;
  const Event start(cudaEventDefault);
  const Event stop(cudaEventDefault);
  float milliseconds = -1.0F;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop) == cudaErrorInvalidResourceHandle);
  check(cudaEventRecord(start, stream));
  check(cudaEventRecord(stop, stream));
  check(cudaStreamSynchronize(stream));
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop) == cudaSuccess);
  CHECK(milliseconds >= 0.0F);
  const Event untimed;
  check(cudaEventRecord(untimed, stream));
  check(cudaStreamSynchronize(stream));
  CHECK(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("a stream belongs to its device") {
  const Stream of_first;
  const DeviceArray<float> values(std::vector<float>(1, 1.0F));
  check(cudaSetDevice(1));
  CHECK(scale_add({.stream = of_first}, values.data(), 1, 1.0F) == cudaErrorInvalidResourceHandle);
  const Event of_second;
  CHECK(cudaEventRecord(of_second, of_first) == cudaErrorInvalidResourceHandle);
  check(cudaSetDevice(0));
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
}
