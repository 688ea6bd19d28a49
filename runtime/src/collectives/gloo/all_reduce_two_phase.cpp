// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/all_reduce.hpp"

#include <condition_variable>
#include <mutex>

namespace acc::collectives {
namespace {

/// The two phases of an all_reduce: a reduce_scatter, in which each rank sums its slice in place,
/// and an all_gather of the slices. The second one is issued by the group's thread, as soon as the
/// sum is complete.
class TwoPhaseSum final : public Work, public std::enable_shared_from_this<TwoPhaseSum> {
 public:
  using Gather = std::function<WorkPtr()>;
  TwoPhaseSum(GlooRanks& ranks, std::shared_ptr<Exchange> sum, Gather gather)
      : ranks_(ranks), sum_(std::move(sum)), gather_(std::move(gather)) {}

  void start() {
    ranks_.background->add([self = shared_from_this()] { self->run(); });
  }

  void wait() override {
    if (!gathering_) {
      await_sum();
    }
    gathering_->wait();
  }
  void wait_released() override { wait(); }

 private:
  void run() {
    WorkPtr gathering;
    std::exception_ptr error;
    try {
      if (sum_->wait_on(*ranks_.background)) {
        gathering = gather_();
      }
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    issued_ = std::move(gathering);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  void await_sum() {
    ranks_.watch->begin([this] { ranks_.background->stop(); });
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, ranks_.spec.timeout, [this] { return ended_; })) {
      lock.unlock();
      sum_->fail_late();
    }
    if (error_) {
      try {
        std::rethrow_exception(error_);
      } catch (const Error&) {
        ranks_.watch->give_up();
        throw;
      } catch (const std::exception& error) {
        sum_->fail_with(error);
      }
    }
    if (!issued_) {
      sum_->fail_stopped();
    }
    ranks_.watch->end();
    gathering_ = issued_;
  }

  GlooRanks& ranks_;
  std::shared_ptr<Exchange> sum_;
  Gather gather_;
  WorkPtr gathering_;  ///< the second phase, once `wait` has seen it
  std::mutex mutex_;   ///< guards issued_, error_, ended_
  std::condition_variable changed_;
  WorkPtr issued_;  ///< null if the first phase has failed or was stopped
  std::exception_ptr error_;
  bool ended_ = false;  ///< the first phase has ended in one of these ways
};

}  // namespace

WorkPtr all_reduce_two_phase(GlooRanks& ranks, const AllReduce& call) {
  const SentArray sent(call.data, call.numel, call.dtype);
  const std::size_t shard = call.numel / ranks.size();
  const std::size_t first = shard * ranks.rank();
  const std::size_t nbytes = shard * nbytes_of(call.dtype);
  auto phase = sum_parts(ranks, {.number = call.number,
                                 .kind = OpKind::all_reduce,
                                 .parts = slices(ranks, sent.data(), nbytes),
                                 .numel = shard,
                                 .dtype = call.dtype,
                                 .out = call.data + first,
                                 .options = {.scale = call.scale, .code = call.code}});
  phase->keep(sent.owner());
  auto work = std::make_shared<TwoPhaseSum>(ranks, std::move(phase), [=, &ranks] {
    sent.round(first, shard);
    const std::vector<void*> places = slices(ranks, sent.data(), nbytes);
    auto gather = ranks.start(call.number, OpKind::all_reduce, call.dtype, shard, true);
    if (call.code) {
      return exchange_coded(ranks, std::move(gather), places[ranks.rank()], places, shard,
                            call.dtype, call.code);
    }
    gather->then([sent] { sent.widen(); });
    return exchange_shards(ranks, std::move(gather), places[ranks.rank()], places, nbytes);
  });
  work->start();
  return work;
}

}  // namespace acc::collectives
