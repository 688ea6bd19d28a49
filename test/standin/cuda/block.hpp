#pragma once

#include "standin/cuda/emulator.hpp"

#include <boost/context/fiber.hpp>

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

namespace standin {

/// A stack on which threads run, one at a time; a thread that waits keeps its worker.
class Worker {
 public:
  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Runs until the worker suspends.
  void resume() { fiber_ = std::move(fiber_).resume(); }
  /// Called on the worker: back to whoever resumed it.
  void suspend() { resumer_ = std::move(resumer_).resume(); }
  Block* block = nullptr;  ///< whose threads it runs next

 private:
  boost::context::fiber fiber_;
  boost::context::fiber resumer_;
};

struct AsyncCopy {
  void* to;
  const void* from;
  std::size_t nbytes;
  std::size_t source_nbytes;  ///< the rest is zero
  std::size_t group;

  void run() const {
    std::memcpy(to, from, source_nbytes);
    std::memset(static_cast<char*>(to) + source_nbytes, 0, nbytes - source_nbytes);
  }
};

struct FiberThread : Thread {
  uint3 index{};
  bool ended = false;
  Worker* worker = nullptr;
  const char* waits_for = "";
  std::source_location where;
  std::vector<AsyncCopy> copies;
  std::size_t groups = 0;  ///< committed so far
};

struct WarpCall {
  unsigned mask;
  WarpOperation operation;
  const char* name;
  std::source_location where;
};

/// The threads of one block; used for one block after the other.
class Block {
 public:
  Block(const GridShape& shape, const std::function<void()>& kernel);
  void run();
  /// On a worker: runs fresh threads until there are none.
  void run_fresh_threads(Worker& worker);

  void barrier(FiberThread& thread, std::source_location where);
  void warp_operation(FiberThread& thread, const WarpCall& call, void* arguments);

 private:
  /// Lanes that have come to a warp operation so far.
  struct Gathering {
    WarpCall call;
    unsigned arrived = 0;
    void* arguments[kWarpSize] = {};
  };
  struct Warp {
    unsigned live = 0;
    std::vector<Gathering> gatherings;
  };

  void start();
  static void make_current(FiberThread& thread);
  FiberThread* next_fresh();
  void end(FiberThread& thread);
  void release_barrier_if_complete();
  Gathering& join(FiberThread& thread, const WarpCall& call);
  bool complete_if_all_came(unsigned warp, Gathering& gathering);
  [[noreturn]] void die_of_deadlock() const;
  [[nodiscard]] std::string describe(const FiberThread& thread) const;

  const std::function<void()>& kernel_;
  std::vector<FiberThread> threads_;
  std::vector<Warp> warps_;
  std::deque<FiberThread*> ready_;
  std::vector<FiberThread*> at_barrier_;
  std::size_t started_ = 0;
  std::size_t ended_ = 0;
  bool backwards_ = false;  ///< fresh threads start from the last
  std::mt19937_64 random_;
};

}  // namespace standin
