// SPDX-License-Identifier: Apache-2.0
#include "collectives/recorded_group.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace acc::collectives {
namespace {

using flight::Recorder;
using flight::State;

/// Name that users know for a collective of a unit.
std::string_view purpose_of(std::string_view kind) {
  if (kind == "all_gather") {
    return "gather";
  }
  return kind == "reduce_scatter" || kind == "all_reduce" ? "reduction" : kind;
}

/// Suffix for error messages, such as " (in the gather of unit transformer.h.3, forward)". Empty if
/// the collective was called outside of every unit and phase.
std::string place_of(const Recorder::Call& call, std::string_view kind) {
  const std::string_view phase = call.phase;
  if (call.unit != nullptr && !call.unit->empty()) {
    return fmt::format(" (in the {} of unit {}, {})", purpose_of(kind), *call.unit, phase);
  }
  return phase.empty() ? "" : fmt::format(" (in the {})", phase);
}

/// Runs a step of a collective. Adds the place to an Error that it throws and records the failure.
template <typename Run>
decltype(auto) recorded(Recorder& recorder, const Recorder::Call& call, const char* kind,
                        const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    const std::string what = error.what();
    const std::string place = place_of(call, kind);
    // An earlier call of the group may have failed with the same text, which has the place already.
    const Error placed(error.code(), what.find(place) == std::string::npos ? what + place : what,
                       error.rank());
    recorder.failed(call, placed);
    throw placed;
  }
}

/// A span from now to `end`, in the timeline of a device that computes on the calling thread.
class Span {
 public:
  Span(device::DevicePtr device, std::string_view kind, std::size_t nbytes)
      : device_(std::move(device)),
        stream_(kind.find("reduce") != kind.npos ? "reduce" : "gather"),  // as on a GPU
        begin_(device_->record(device_->compute())) {
    if (device::Timeline* const timeline = device_->timeline()) {
      collective_ = timeline->issued(fmt::format("{} {} bytes", kind, nbytes));
    }
  }
  /// Adds the span. Later calls add nothing.
  void end() {
    device::Timeline* const timeline = device_->timeline();
    if (begin_ && timeline != nullptr) {
      timeline->add(std::move(collective_), stream_, std::exchange(begin_, nullptr),
                    device_->record(device_->compute()));
    }
  }

 private:
  device::DevicePtr device_;
  device::Timeline::Collective collective_;
  const char* stream_;
  device::EventPtr begin_;
};

[[noreturn]] void throw_replaced() {
  throw Error(Errc::peer_lost,
              "the group of this collective has lost a rank and was given up; rejoin the job "
              "(CheckpointSeries::rejoin)");
}

/// Takes the place of a group that is given up and not replaced yet.
class LostGroup final : public ProcessGroup {
 public:
  explicit LostGroup(const ProcessGroup& group)
      : rank_(group.rank()),
        size_(group.size()),
        shares_(group.shares_gathered_memory()),
        description_(group.describe()) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string describe() const override { return description_; }
  bool shares_gathered_memory() const noexcept override { return shares_; }
  BufferPtr allocate_gathered(std::size_t) override { throw_replaced(); }
  BufferPtr allocate_contribution(std::size_t) override { throw_replaced(); }
  BufferPtr renew(const BufferPtr&) override { throw_replaced(); }
  void release_gathered(const BufferPtr&) override {}
  WorkPtr all_gather(const void*, void*, std::size_t) override { throw_replaced(); }
  WorkPtr reduce_scatter(const void*, float*, std::size_t, DType, ReduceOptions) override {
    throw_replaced();
  }
  WorkPtr all_reduce(float*, std::size_t, DType, float) override { throw_replaced(); }
  WorkPtr all_reduce(std::span<double>, ReduceOp) override { throw_replaced(); }
  WorkPtr broadcast(void*, std::size_t, int) override { throw_replaced(); }
  void after(const std::shared_ptr<device::Event>&) override {}
  WorkPtr barrier() override { throw_replaced(); }
  void progress() override { throw_replaced(); }
  std::optional<std::string> failure() const override { return "a rank was lost"; }
  void abort(const std::string&, Errc) noexcept override {}

 private:
  int rank_;
  int size_;
  bool shares_;
  std::string description_;
};

/// Records the begin and the end of each wait. A work may be waited for more than once; in the
/// flight record the last wait counts, in the timeline the first.
class RecordedWork final : public Work {
 public:
  RecordedWork(WorkPtr inner, std::shared_ptr<Recorder> recorder, Recorder::Call call,
               const char* kind, std::optional<Span> span)
      : inner_(std::move(inner)),
        recorder_(std::move(recorder)),
        call_(call),
        kind_(kind),
        span_(std::move(span)) {}

  void wait() override {
    wait_for([this] { inner_->wait(); });
  }
  void wait_released() override {
    wait_for([this] { inner_->wait_released(); });
  }
  std::shared_ptr<device::Event> done() const override { return inner_ ? inner_->done() : nullptr; }
  bool is_complete() const override { return inner_ && inner_->is_complete(); }
  /// The group that has issued it ends.
  void lose() noexcept { inner_.reset(); }

 private:
  template <typename Wait>
  void wait_for(const Wait& wait) {
    if (!inner_) {
      throw_replaced();
    }
    recorder_->waits(call_);
    const auto begin = std::chrono::steady_clock::now();
    recorded(*recorder_, call_, kind_, wait);
    if (span_) {
      span_->end();
    }
    recorder_->waited(kind_, std::chrono::steady_clock::now() - begin);
    recorder_->ended(call_, State::done);
  }

  WorkPtr inner_;
  std::shared_ptr<Recorder> recorder_;
  Recorder::Call call_;
  const char* kind_;
  std::optional<Span> span_;
};

class RecordedGroup final : public ProcessGroup {
 public:
  RecordedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Recorder> recorder, int index,
                device::DevicePtr traced)
      : inner_(std::move(inner)),
        recorder_(std::move(recorder)),
        index_(index),
        traced_(std::move(traced)) {}

  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  bool shares_gathered_memory() const noexcept override { return inner_->shares_gathered_memory(); }

  BufferPtr allocate_gathered(std::size_t nbytes) override {
    return at_once(nbytes, [&] { return inner_->allocate_gathered(nbytes); });
  }
  BufferPtr allocate_contribution(std::size_t nbytes) override {
    return at_once(nbytes, [&] { return inner_->allocate_contribution(nbytes); });
  }
  BufferPtr renew(const BufferPtr& old) override {
    return at_once(old->nbytes(), [&] { return inner_->renew(old); });
  }
  void release_gathered(const BufferPtr& gathered) override { inner_->release_gathered(gathered); }

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override {
    return issue("all_gather", shard_nbytes * static_cast<std::size_t>(size()),
                 [&] { return inner_->all_gather(shard, out, shard_nbytes); });
  }
  WorkPtr all_gather_coded(const void* shard, void* out, std::size_t shard_numel, DType dtype,
                           BlockCode code) override {
    return issue("all_gather", shard_numel * nbytes_of(dtype) * static_cast<std::size_t>(size()),
                 [&] { return inner_->all_gather_coded(shard, out, shard_numel, dtype, code); });
  }
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override {
    return issue("reduce_scatter",
                 shard_numel * nbytes_of(dtype) * static_cast<std::size_t>(size()),
                 [&] { return inner_->reduce_scatter(in, out, shard_numel, dtype, options); });
  }
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override {
    return issue("all_reduce", numel * nbytes_of(dtype),
                 [&] { return inner_->all_reduce(data, numel, dtype, scale); });
  }
  WorkPtr all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                           BlockCode code) override {
    return issue("all_reduce", numel * nbytes_of(dtype),
                 [&] { return inner_->all_reduce_coded(data, numel, dtype, scale, code); });
  }
  // Scalars and barriers are not part of the timeline.
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override {
    return issue(
        "all_reduce", data.size_bytes(), [&] { return inner_->all_reduce(data, op); }, nullptr);
  }
  WorkPtr sum(double* data, std::size_t numel) override {
    return issue(
        "all_reduce", numel * sizeof(double), [&] { return inner_->sum(data, numel); }, nullptr);
  }
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override {
    return issue("broadcast", nbytes, [&] { return inner_->broadcast(data, nbytes, root); });
  }
  WorkPtr barrier() override {
    return issue(
        "barrier", 0, [&] { return inner_->barrier(); }, nullptr);
  }
  void after(const std::shared_ptr<device::Event>& event) override { inner_->after(event); }

  bool spans_machines() const noexcept override { return inner_->spans_machines(); }
  SentBytes sent() const noexcept override { return inner_->sent(); }
  void defer_posts(bool defer) override { inner_->defer_posts(defer); }
  /// The caller may not see the error: scopes of units make progress in their destructors.
  void progress() override {
    try {
      inner_->progress();
    } catch (const Error& error) {
      recorder_->failed(error);
      throw;
    }
  }
  std::optional<std::string> failure() const override { return inner_->failure(); }
  void abort(const std::string& reason, Errc code) noexcept override {
    inner_->abort(reason, code);
  }

  void give_up() { end(std::make_shared<LostGroup>(*inner_)); }
  void replace(std::shared_ptr<ProcessGroup> inner, const std::vector<int>& ranks) {
    end(std::move(inner));
    recorder_->set_ranks(index_, ranks);
  }

 private:
  void end(std::shared_ptr<ProcessGroup> next) {
    for (const auto& each : issued_) {
      if (const auto work = each.lock()) {
        work->lose();
      }
    }
    issued_.clear();
    inner_ = std::move(next);
  }

  template <typename Issue>
  WorkPtr issue(const char* kind, std::size_t nbytes, const Issue& run) {
    return issue(kind, nbytes, run, traced_);
  }
  template <typename Issue>
  WorkPtr issue(const char* kind, std::size_t nbytes, const Issue& run,
                const device::DevicePtr& traced) {
    const Recorder::Call call = recorder_->call(index_, kind, nbytes);
    WorkPtr work = recorded(*recorder_, call, kind, run);
    std::optional<Span> span;
    if (traced) {
      span.emplace(traced, kind, nbytes);
    }
    auto issued =
        std::make_shared<RecordedWork>(std::move(work), recorder_, call, kind, std::move(span));
    if (issued_.size() >= looks_at_) {
      std::erase_if(issued_, [](const auto& each) { return each.expired(); });
      looks_at_ = std::max(kFewWorks, 2 * issued_.size());
    }
    issued_.push_back(issued);
    return issued;
  }

  /// Records an allocation: a collective that is complete when the call returns.
  template <typename Allocate>
  BufferPtr at_once(std::size_t nbytes, const Allocate& run) {
    const Recorder::Call call = recorder_->call(index_, "allocate", nbytes);
    recorder_->waits(call);
    BufferPtr buffer = recorded(*recorder_, call, "allocate", run);
    recorder_->ended(call, State::done);
    return buffer;
  }

  std::shared_ptr<ProcessGroup> inner_;
  std::shared_ptr<Recorder> recorder_;
  int index_;
  device::DevicePtr traced_;
  static constexpr std::size_t kFewWorks = 64;
  std::vector<std::weak_ptr<RecordedWork>> issued_;  ///< with those that are gone
  std::size_t looks_at_ = kFewWorks;                 ///< size at which those are removed
};

}  // namespace

std::shared_ptr<ProcessGroup> record_group(std::shared_ptr<ProcessGroup> inner,
                                           std::shared_ptr<flight::Recorder> recorder,
                                           std::string_view name, const std::vector<int>& ranks,
                                           device::DevicePtr traced) {
  const int index = recorder->add_group(name, ranks);
  return std::make_shared<RecordedGroup>(std::move(inner), std::move(recorder), index,
                                         std::move(traced));
}

void give_up_group(ProcessGroup& recorded) {
  static_cast<RecordedGroup&>(recorded).give_up();
}

void replace_group(ProcessGroup& recorded, std::shared_ptr<ProcessGroup> inner,
                   const std::vector<int>& ranks) {
  static_cast<RecordedGroup&>(recorded).replace(std::move(inner), ranks);
}

}  // namespace acc::collectives
