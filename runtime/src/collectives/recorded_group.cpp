// SPDX-License-Identifier: Apache-2.0
#include "collectives/recorded_group.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

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
  std::shared_ptr<device::Event> done() const override { return inner_->done(); }
  bool is_complete() const override { return inner_->is_complete(); }

 private:
  template <typename Wait>
  void wait_for(const Wait& wait) {
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
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }

 private:
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
    return std::make_shared<RecordedWork>(std::move(work), recorder_, call, kind, std::move(span));
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

}  // namespace acc::collectives
