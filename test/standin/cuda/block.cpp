// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/block.hpp"

#include "standin/settings.hpp"

#include <boost/context/protected_fixedsize_stack.hpp>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace standin {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

/// The workers of this host thread. Fibers do not move between host threads, because `__shared__`
/// variables are thread-local variables of the host thread.
class WorkerPool {
 public:
  Worker& take() {
    if (idle_.empty()) {
      all_.push_back(std::make_unique<Worker>());
      idle_.push_back(all_.back().get());
    }
    Worker& worker = *idle_.back();
    idle_.pop_back();
    return worker;
  }
  void give_back(Worker& worker) { idle_.push_back(&worker); }

 private:
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
};

WorkerPool& pool() {
  static thread_local WorkerPool workers;
  return workers;
}

/// Seed of one launch. It differs between launches, so that many orders are tried.
std::uint64_t next_seed() {
  static const std::uint64_t seed = read_settings().seed;
  static thread_local std::uint64_t launches = 0;
  return seed + ++launches;
}

std::string text(std::source_location where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

bool same_place(std::source_location a, std::source_location b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

}  // namespace

Worker::Worker()
    : fiber_(std::allocator_arg, boost::context::protected_fixedsize_stack(kStackBytes),
             [this](boost::context::fiber&& resumer) {
               resumer_ = std::move(resumer);
               while (true) {
                 block->run_fresh_threads(*this);
                 suspend();
               }
               return std::move(resumer_);
             }) {}

Block::Block(const GridShape& shape, const std::function<void()>& kernel)
    : kernel_(kernel),
      threads_(std::size_t{shape.block.x} * shape.block.y * shape.block.z),
      warps_((threads_.size() + kWarpSize - 1) / kWarpSize),
      random_(next_seed()) {
  for (unsigned i = 0; i < threads_.size(); ++i) {
    FiberThread& thread = threads_[i];
    thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y,
                    i / (shape.block.x * shape.block.y)};
    thread.lane = i % kWarpSize;
    thread.rank = i;
    thread.block = this;
  }
}

void Block::start() {
  for (Warp& warp : warps_) {
    warp.live = 0;
  }
  for (FiberThread& thread : threads_) {
    thread.ended = false;
    warps_[thread.rank / kWarpSize].live |= 1U << thread.lane;
  }
  started_ = 0;
  ended_ = 0;
  backwards_ = random_() % 2 == 0;
}

void Block::run() {
  start();
  while (ended_ < threads_.size()) {
    if (!ready_.empty()) {
      FiberThread& thread = *ready_.front();
      ready_.pop_front();
      make_current(thread);
      thread.worker->resume();
    } else if (started_ < threads_.size()) {
      Worker& worker = pool().take();
      worker.block = this;
      worker.resume();
    } else {
      die_of_deadlock();
    }
  }
  current_thread = nullptr;
}

void Block::make_current(FiberThread& thread) {
  current_thread = &thread;
  threadIdx = thread.index;
}

FiberThread* Block::next_fresh() {
  if (started_ == threads_.size()) {
    return nullptr;
  }
  const std::size_t i = backwards_ ? threads_.size() - 1 - started_ : started_;
  ++started_;
  return &threads_[i];
}

void Block::run_fresh_threads(Worker& worker) {
  while (FiberThread* thread = next_fresh()) {
    thread->worker = &worker;
    make_current(*thread);
    kernel_();
    end(*thread);
  }
  pool().give_back(worker);
}

void Block::end(FiberThread& thread) {
  thread.ended = true;
  ++ended_;
  const unsigned w = thread.rank / kWarpSize;
  warps_[w].live &= ~(1U << thread.lane);
  auto& gatherings = warps_[w].gatherings;
  std::erase_if(gatherings, [&](Gathering& g) { return complete_if_all_came(w, g); });
  release_barrier_if_complete();
}

void Block::barrier(FiberThread& thread, std::source_location where) {
  if (!at_barrier_.empty() && !same_place(at_barrier_.front()->where, where)) {
    die("divergent __syncthreads: " + describe(*at_barrier_.front()) + ", while thread " +
        std::to_string(thread.rank) + " came to the one at " + text(where));
  }
  thread.waits_for = "__syncthreads";
  thread.where = where;
  at_barrier_.push_back(&thread);
  release_barrier_if_complete();
  thread.worker->suspend();
}

void Block::release_barrier_if_complete() {
  if (at_barrier_.empty() || at_barrier_.size() < threads_.size() - ended_) {
    return;
  }
  if (random_() % 2 == 0) {
    std::ranges::reverse(at_barrier_);
  }
  ready_.insert(ready_.end(), at_barrier_.begin(), at_barrier_.end());
  at_barrier_.clear();
}

Block::Gathering& Block::join(FiberThread& thread, const WarpCall& call) {
  const unsigned bit = 1U << thread.lane;
  if ((call.mask & bit) == 0) {
    die(std::string(call.name) + " at " + text(call.where) + ": thread " +
        std::to_string(thread.rank) + " is not in the mask it names");
  }
  auto& gatherings = warps_[thread.rank / kWarpSize].gatherings;
  for (Gathering& g : gatherings) {
    const bool same_call = g.call.mask == call.mask && g.call.operation == call.operation &&
                           same_place(g.call.where, call.where);
    if (same_call) {
      return g;
    }
    if ((g.call.mask & call.mask) != 0) {
      die(std::string("divergent warp: some lanes are in ") + g.call.name + " at " +
          text(g.call.where) + ", while thread " + std::to_string(thread.rank) + " came to " +
          call.name + " at " + text(call.where));
    }
  }
  return gatherings.emplace_back(Gathering{call, 0, {}});
}

void Block::warp_operation(FiberThread& thread, const WarpCall& call, void* arguments) {
  const unsigned w = thread.rank / kWarpSize;
  Gathering& gathering = join(thread, call);
  gathering.arrived |= 1U << thread.lane;
  gathering.arguments[thread.lane] = arguments;
  thread.waits_for = call.name;
  thread.where = call.where;
  if (complete_if_all_came(w, gathering)) {
    auto& all = warps_[w].gatherings;
    all.erase(all.begin() + (&gathering - all.data()));
  }
  thread.worker->suspend();
}

bool Block::complete_if_all_came(unsigned warp, Gathering& gathering) {
  if ((gathering.call.mask & warps_[warp].live & ~gathering.arrived) != 0) {
    return false;
  }
  gathering.call.operation(gathering.arguments);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((gathering.arrived >> lane & 1U) != 0) {
      ready_.push_back(&threads_[std::size_t{warp} * kWarpSize + lane]);
    }
  }
  return true;
}

std::string Block::describe(const FiberThread& thread) const {
  return "thread " + std::to_string(thread.rank) + " waits in " + thread.waits_for + " at " +
         text(thread.where);
}

void Block::die_of_deadlock() const {
  std::ostringstream message;
  message << "deadlock in block (" << blockIdx.x << ", " << blockIdx.y << ", " << blockIdx.z
          << ") of " << threads_.size() << " threads, of which " << ended_ << " have ended:";
  const FiberThread* previous = nullptr;
  for (const FiberThread& thread : threads_) {
    if (thread.ended) {
      continue;
    }
    if (previous == nullptr || !same_place(previous->where, thread.where)) {
      message << "\n  " << describe(thread);
    }
    previous = &thread;
  }
  die(message.str());
}

}  // namespace standin
