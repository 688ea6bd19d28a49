// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/cuda/emulator.hpp"

#include <boost/context/fiber.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

namespace standin {

/// A fiber on which threads of a block run, one after the other. A thread that waits keeps its
/// worker.
class Worker {
 public:
  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Runs the worker until it suspends.
  void resume() { fiber_ = std::move(fiber_).resume(); }
  /// Called on the worker: returns to the caller of `resume`.
  void suspend() { resumer_ = std::move(resumer_).resume(); }
  Block* block = nullptr;  ///< block whose threads it runs next

 private:
  boost::context::fiber fiber_;
  boost::context::fiber resumer_;
};

struct FiberThread : Thread {
  uint3 index{};
  bool ended = false;
  Worker* worker = nullptr;
  const char* waits_for = "";
  std::source_location where;
};

struct WarpCall {
  unsigned mask;
  WarpOperation operation;
  const char* name;
  std::source_location where;
};

/// The threads of one block. The object is reused for successive blocks.
class Block {
 public:
  Block(const GridShape& shape, const std::function<void()>& kernel);
  void run();
  /// Called on a worker: runs threads that have not started until there are none left.
  void run_fresh_threads(Worker& worker);

  void barrier(FiberThread& thread, std::source_location where);
  void warp_operation(FiberThread& thread, const WarpCall& call, void* arguments);

 private:
  /// Lanes that have reached a warp operation so far.
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
  bool backwards_ = false;  ///< threads start in descending order
  std::mt19937_64 random_;
};

}  // namespace standin
