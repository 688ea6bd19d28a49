// SPDX-License-Identifier: Apache-2.0
#include "collectives/traced_group.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace acc::collectives {
namespace {

/// Times are events on the compute stream. On the CPU an event is the current time of the calling
/// thread, so the span covers issue to end of the wait.
class TracedWork final : public Work {
 public:
  TracedWork(WorkPtr inner, device::DevicePtr device, std::string name, std::string stream)
      : inner_(std::move(inner)),
        device_(std::move(device)),
        stream_(std::move(stream)),
        begin_(device_->record(device_->compute())) {
    if (device::Timeline* const timeline = device_->timeline()) {
      collective_ = timeline->issued(std::move(name));
    }
  }

  void wait() override {
    inner_->wait();
    tell();
  }
  void wait_released() override {
    inner_->wait_released();
    tell();
  }
  device::EventPtr done() const override { return inner_->done(); }
  bool is_complete() const override { return inner_->is_complete(); }

 private:
  /// Adds the span at the first wait; later waits of the same work add nothing.
  void tell() {
    device::Timeline* const timeline = device_->timeline();
    if (begin_ && timeline != nullptr) {
      timeline->add(std::move(collective_), stream_, std::move(begin_),
                    device_->record(device_->compute()));
      begin_.reset();
    }
  }

  WorkPtr inner_;
  device::DevicePtr device_;
  device::Timeline::Collective collective_;
  std::string stream_;
  device::EventPtr begin_;
};

class TracedGroup final : public ProcessGroup {
 public:
  TracedGroup(std::shared_ptr<ProcessGroup> inner, device::DevicePtr device)
      : inner_(std::move(inner)), device_(std::move(device)) {}

  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  bool shares_gathered_memory() const noexcept override { return inner_->shares_gathered_memory(); }
  BufferPtr allocate_gathered(std::size_t nbytes) override {
    return inner_->allocate_gathered(nbytes);
  }
  BufferPtr allocate_contribution(std::size_t nbytes) override {
    return inner_->allocate_contribution(nbytes);
  }
  void release_gathered(const BufferPtr& gathered) override { inner_->release_gathered(gathered); }

  WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) override {
    return traced(inner_->all_gather(shard, out, shard_nbytes), "all_gather",
                  shard_nbytes * static_cast<std::size_t>(size()));
  }
  WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                         ReduceOptions options) override {
    return traced(inner_->reduce_scatter(in, out, shard_numel, dtype, options), "reduce_scatter",
                  shard_numel * nbytes_of(dtype) * static_cast<std::size_t>(size()));
  }
  WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) override {
    return traced(inner_->all_reduce(data, numel, dtype, scale), "all_reduce",
                  numel * nbytes_of(dtype));
  }
  // Scalars and barriers are not part of the timeline.
  WorkPtr all_reduce(std::span<double> data, ReduceOp op) override {
    return inner_->all_reduce(data, op);
  }
  WorkPtr sum(double* data, std::size_t numel) override { return inner_->sum(data, numel); }
  WorkPtr broadcast(void* data, std::size_t nbytes, int root) override {
    return traced(inner_->broadcast(data, nbytes, root), "broadcast", nbytes);
  }
  WorkPtr barrier() override { return inner_->barrier(); }
  void after(const device::EventPtr& event) override { inner_->after(event); }

  void progress() override { inner_->progress(); }
  std::optional<std::string> failure() const override { return inner_->failure(); }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }

 private:
  WorkPtr traced(WorkPtr work, const char* name, std::size_t nbytes) {
    // The names of the streams on which a GPU runs them.
    const bool reduces = std::string_view(name).find("reduce") != std::string_view::npos;
    return std::make_shared<TracedWork>(std::move(work), device_,
                                        fmt::format("{} {} bytes", name, nbytes),
                                        reduces ? "reduce" : "gather");
  }

  std::shared_ptr<ProcessGroup> inner_;
  device::DevicePtr device_;
};

}  // namespace

std::shared_ptr<ProcessGroup> trace_group(std::shared_ptr<ProcessGroup> inner,
                                          device::DevicePtr device) {
  return std::make_shared<TracedGroup>(std::move(inner), std::move(device));
}

}  // namespace acc::collectives
