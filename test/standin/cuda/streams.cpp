// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/streams.hpp"

#include "standin/cuda/capture.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/standin.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace standin {
namespace {

constexpr auto kRetry = std::chrono::microseconds(100);  // interval for work that is not complete

/// At the end of the process, queued work is dropped. Work that is running then uses objects that
/// are about to be destroyed, so the process waits for it.
void stop_at_exit();

/// State of all streams of the process. One mutex and one condition variable are enough, because
/// there are few.
struct Shared {
  Shared() { std::atexit(stop_at_exit); }
  bool stopping = false;
  int executing = 0;  ///< engines that run a piece of work
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, std::thread::id>, Engine*> engines;
  std::map<int, StreamPtr> default_streams;
};

Shared& shared() {
  static Shared* const the_shared = new Shared;  // outlives the engines' threads
  return *the_shared;
}

thread_local bool is_engines_thread = false;

void stop_at_exit() {
  std::unique_lock lock(shared().mutex);
  shared().stopping = true;
  const int self = is_engines_thread ? 1 : 0;  // a piece of work may end the process
  shared().changed.wait(lock, [self] { return shared().executing == self; });
}

bool is_done(const Ticket& ticket) {
  return ticket.stream == nullptr || ticket.stream->done >= ticket.number;
}

}  // namespace

/// Thread that runs the streams which one host thread made on one device. With one per host thread,
/// ranks that are threads of one process do not block each other.
class Engine {
 public:
  explicit Engine(std::uint64_t seed) : random_(seed) {
    std::thread([this] { run(); }).detach();
  }

  // All of these require the shared mutex.
  void add(StreamPtr stream) { streams_.push_back(std::move(stream)); }
  void forget(const StreamPtr& stream) { forgotten_.push_back(stream); }
  [[nodiscard]] const std::vector<StreamPtr>& streams() const { return streams_; }
  void want(const Ticket& ticket) { wanted_.push_back(ticket); }
  void polled() {
    constexpr int kPollsForOneStep = 3;
    if (++polls_ % kPollsForOneStep == 0) {
      ++steps_granted_;
    }
  }

 private:
  [[noreturn]] void run();
  /// True if work may start: a thread waits or has polled, or the work is old enough.
  bool may_run();
  /// Time at which work becomes old enough; the maximum if there is no work.
  [[nodiscard]] Clock::time_point when_oldest_is_due() const;
  Stream* choose();
  void execute(Stream& stream, std::unique_lock<std::mutex>& lock);
  void drop_forgotten();

  std::mt19937_64 random_;
  std::vector<StreamPtr> streams_;
  std::vector<StreamPtr> forgotten_;
  std::vector<Ticket> wanted_;
  std::vector<const Stream*> not_yet_;  ///< streams found incomplete since the last progress
  const Stream* last_ = nullptr;
  long polls_ = 0;
  long steps_granted_ = 0;
};

void Engine::run() {
  is_engines_thread = true;
  std::unique_lock lock(shared().mutex);
  while (true) {
    drop_forgotten();
    if (!may_run()) {
      const auto due = when_oldest_is_due();
      if (due == Clock::time_point::max()) {
        shared().changed.wait(lock);
      } else {
        shared().changed.wait_until(lock, due);
      }
    } else if (Stream* stream = choose()) {
      execute(*stream, lock);
    } else {
      shared().changed.wait_for(lock, kRetry);
      not_yet_.clear();
    }
  }
}

bool Engine::may_run() {
  std::erase_if(wanted_, is_done);
  const auto due = when_oldest_is_due();
  const bool has_work = due != Clock::time_point::max();
  steps_granted_ = has_work ? steps_granted_ : 0;
  return has_work && (!wanted_.empty() || steps_granted_ > 0 || due <= Clock::now());
}

Clock::time_point Engine::when_oldest_is_due() const {
  auto due = Clock::time_point::max();
  if (shared().stopping) {
    return due;
  }
  for (const StreamPtr& stream : streams_) {
    if (!stream->queue.empty()) {
      due = std::min(due,
                     stream->queue.front().issued + std::chrono::milliseconds(settings().idle_ms));
    }
  }
  return due;
}

Stream* Engine::choose() {
  std::vector<Stream*> runnable;
  for (const StreamPtr& stream : streams_) {
    const bool ready =
        !stream->queue.empty() && std::ranges::all_of(stream->queue.front().after, is_done);
    if (ready && std::ranges::find(not_yet_, stream.get()) == not_yet_.end()) {
      runnable.push_back(stream.get());
    }
  }
  if (runnable.empty()) {
    return nullptr;
  }
  // With probability 1/2 the same stream continues, so that one stream can get far ahead of
  // another.
  const bool goes_on = random_() % 2 == 0;
  const auto last = std::ranges::find(runnable, last_);
  Stream* chosen =
      goes_on && last != runnable.end() ? *last : runnable[random_() % runnable.size()];
  last_ = chosen;
  return chosen;
}

void Engine::execute(Stream& stream, std::unique_lock<std::mutex>& lock) {
  Work& work = stream.queue.front();
  const bool faulted = device_fault(stream.device) != cudaSuccess;
  ++shared().executing;
  lock.unlock();
  const bool done = faulted || work.step();
  lock.lock();
  --shared().executing;
  shared().changed.notify_all();
  if (!done) {
    not_yet_.push_back(&stream);
    return;
  }
  Work finished = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.done;
  steps_granted_ = std::max(0L, steps_granted_ - 1);
  not_yet_.clear();
  lock.unlock();
  finished = {};  // captured objects may call back when they are destroyed
  lock.lock();
}

void Engine::drop_forgotten() {
  std::erase_if(forgotten_, [this](const StreamPtr& stream) {
    return stream->queue.empty() && std::erase(streams_, stream) > 0;
  });
}

namespace {

Engine& engine_of_this_thread(int device) {
  Engine*& engine = shared().engines[{device, std::this_thread::get_id()}];
  if (engine == nullptr) {
    engine = new Engine(settings().seed + static_cast<std::uint64_t>(device));
  }
  return *engine;
}

StreamPtr make_stream_locked(int device, bool blocking) {
  Engine& engine = engine_of_this_thread(device);
  auto stream = std::make_shared<Stream>(device, blocking, engine);
  engine.add(stream);
  return stream;
}

StreamPtr default_stream_locked(int device) {
  StreamPtr& stream = shared().default_streams[device];
  if (stream == nullptr) {
    stream = make_stream_locked(device, /*blocking=*/true);
  }
  return stream;
}

template <typename Visit>
void each_stream(int device, Visit&& visit) {
  for (const auto& [key, engine] : shared().engines) {
    if (key.first == device) {
      for (const StreamPtr& stream : engine->streams()) {
        visit(stream);
      }
    }
  }
}

/// Points for which new work must wait: the default stream is ordered with every blocking stream of
/// its device.
void add_implicit_order(const StreamPtr& stream, std::vector<Ticket>& after) {
  if (!stream->blocking) {
    return;
  }
  const StreamPtr by_default = default_stream_locked(stream->device);
  if (stream != by_default) {
    after.push_back({by_default, by_default->issued});
    return;
  }
  each_stream(stream->device, [&](const StreamPtr& other) {
    if (other->blocking && other != stream) {
      after.push_back({other, other->issued});
    }
  });
}

void wait_all(const std::vector<Ticket>& tickets) {
  std::unique_lock lock(shared().mutex);
  for (const Ticket& ticket : tickets) {
    if (!is_done(ticket)) {
      ticket.stream->engine.want(ticket);
    }
  }
  shared().changed.notify_all();
  shared().changed.wait(lock, [&] { return std::ranges::all_of(tickets, is_done); });
}

}  // namespace

StreamPtr make_stream(int device, bool blocking) {
  const std::lock_guard lock(shared().mutex);
  return make_stream_locked(device, blocking);
}

StreamPtr default_stream(int device) {
  const std::lock_guard lock(shared().mutex);
  return default_stream_locked(device);
}

void forget_stream(const StreamPtr& stream) {
  const std::lock_guard lock(shared().mutex);
  stream->engine.forget(stream);
  shared().changed.notify_all();
}

Ticket enqueue(const StreamPtr& stream, std::function<bool()> step, std::vector<Ticket> after) {
  if (capture_work(stream, step)) {
    return {};
  }
  const std::lock_guard lock(shared().mutex);
  add_implicit_order(stream, after);
  stream->queue.push_back({std::move(step), std::move(after)});
  shared().changed.notify_all();
  return {stream, ++stream->issued};
}

namespace {

std::atomic<long> issued = 0;

}  // namespace

void count_call() {
  ++issued;
}

Ticket now(const StreamPtr& stream) {
  const std::lock_guard lock(shared().mutex);
  return {stream, stream->issued};
}

bool reached(const Ticket& ticket) {
  const std::lock_guard lock(shared().mutex);
  return is_done(ticket);
}

bool poll(const Ticket& ticket) {
  const std::lock_guard lock(shared().mutex);
  if (is_done(ticket)) {
    return true;
  }
  ticket.stream->engine.polled();
  shared().changed.notify_all();
  return false;
}

void wait(const Ticket& ticket) {
  wait_all({ticket});
}

void wait_for_device(int device) {
  std::vector<Ticket> tickets;
  {
    const std::lock_guard lock(shared().mutex);
    each_stream(device, [&](const StreamPtr& stream) {
      tickets.push_back({stream, stream->issued});
    });
  }
  wait_all(tickets);
}

// --- interface for other stand-ins (standin.hpp)

namespace {

cudaError_t enqueue_for_library(cudaStream_t handle, std::function<bool()> work) {
  const StreamPtr stream = stream_of(handle);
  if (stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
    return error;
  }
  count_call();
  enqueue(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace

cudaError_t enqueue_poll(cudaStream_t handle, std::function<bool()> work) {
  const StreamPtr stream = stream_of(handle);
  if (stream != nullptr && capture_status(stream) != cudaStreamCaptureStatusNone) {
    die("the capture of a collective is not emulated");
  }
  return enqueue_for_library(handle, std::move(work));
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  return enqueue_for_library(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

cudaError_t stream_device(cudaStream_t handle, int* device) {
  const StreamPtr stream = stream_of(handle);
  if (stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  *device = stream->device;
  return cudaSuccess;
}

}  // namespace standin

extern "C" __attribute__((visibility("default"))) long acc_standin_issued() {
  return standin::issued;
}
