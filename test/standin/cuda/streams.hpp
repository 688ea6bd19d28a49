// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

/// Streams whose work runs late and, between streams, in a random order. Only the order that the
/// program expresses by streams and events is kept.
namespace standin {

class Engine;
class Stream;
using StreamPtr = std::shared_ptr<Stream>;
using Clock = std::chrono::steady_clock;

/// A point in a stream: after its first `number` pieces of work.
struct Ticket {
  StreamPtr stream;  ///< null: the point has been reached
  std::uint64_t number = 0;
};

struct Work {
  std::function<bool()> step;  ///< returns false if it is not complete
  std::vector<Ticket> after;
  Clock::time_point issued = Clock::now();
};

/// A queue of work that runs in order. Members are guarded by the mutex that all engines share.
class Stream {
 public:
  Stream(int on_device, bool is_blocking, Engine& its_engine)
      : device(on_device), blocking(is_blocking), engine(its_engine) {}
  const int device;
  const bool blocking;  ///< ordered with the device's default stream
  Engine& engine;
  std::deque<Work> queue;
  std::uint64_t issued = 0;
  std::uint64_t done = 0;
};

/// Makes a stream for work that this host thread issues.
StreamPtr make_stream(int device, bool blocking);
/// The default stream of a device. Its work runs with the streams of the host thread that used it
/// first.
StreamPtr default_stream(int device);
/// Destroys the stream once its work is complete.
void forget_stream(const StreamPtr& stream);

/// Queues `step`, which runs after the work before it in `stream` and after the points `after`. If
/// the stream is capturing, `step` becomes a node of the graph instead, and the ticket is reached.
Ticket enqueue(const StreamPtr& stream, std::function<bool()> step, std::vector<Ticket> after = {});
/// The point in `stream` after everything issued so far.
Ticket now(const StreamPtr& stream);

/// Counts a call that gives work to a GPU (acc_standin_issued).
void count_call();

[[nodiscard]] bool reached(const Ticket& ticket);
/// Like `reached`. If the point is not reached, lets the work proceed by one step, so that repeated
/// polling completes it.
[[nodiscard]] bool poll(const Ticket& ticket);
void wait(const Ticket& ticket);
void wait_for_device(int device);

}  // namespace standin

/// CUDA's handles.
struct CUstream_st {
  standin::StreamPtr stream;
};
namespace standin {
/// The stream of a handle; null if there is none. A null handle is the current device's default
/// stream.
StreamPtr stream_of(cudaStream_t handle);
}  // namespace standin
