#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

/// Streams whose work runs late and, across streams, in an order drawn at random: only what the
/// program ordered by streams and events can be relied on.
namespace standin {

class Engine;
class Stream;
using StreamPtr = std::shared_ptr<Stream>;
using Clock = std::chrono::steady_clock;

/// A point in a stream: after its first `number` pieces of work.
struct Ticket {
  StreamPtr stream;  ///< null: a point that has been reached
  std::uint64_t number = 0;
};

struct Work {
  std::function<bool()> step;  ///< false: not yet
  std::vector<Ticket> after;
  Clock::time_point issued = Clock::now();
};

/// Runs one after the other. Its members are guarded by the mutex that all engines share.
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

/// A stream for work that this host thread issues.
StreamPtr make_stream(int device, bool blocking);
/// Runs with the streams of the host thread that used it first.
StreamPtr default_stream(int device);
/// The stream goes when its work is done.
void forget_stream(const StreamPtr& stream);

/// `step` runs after the work before it in `stream` and after `after`.
Ticket enqueue(const StreamPtr& stream, std::function<bool()> step, std::vector<Ticket> after = {});
/// The point that `stream` has come to with all that was issued so far.
Ticket now(const StreamPtr& stream);

[[nodiscard]] bool reached(const Ticket& ticket);
/// Like `reached`, and where it is not, lets the work go on by a step: who asks often enough sees
/// it done.
[[nodiscard]] bool poll(const Ticket& ticket);
void wait(const Ticket& ticket);
void wait_for_device(int device);

}  // namespace standin

/// CUDA's handles.
struct CUstream_st {
  standin::StreamPtr stream;
};
namespace standin {
/// Null where there is no such stream. A null handle is the current device's default stream.
StreamPtr stream_of(cudaStream_t handle);
}  // namespace standin
