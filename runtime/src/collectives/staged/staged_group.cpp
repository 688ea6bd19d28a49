// SPDX-License-Identifier: Apache-2.0
#include "collectives/staged/staged_group.hpp"

#include "acc/base/error.hpp"
#include "collectives/device_buffer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// The pipeline counts chunks over all collectives. Three slots are enough: while one chunk is in
// the host's collective, the slot after it is filled by copies down and the slot before it is
// emptied by copies up. A collective that is issued early has its first chunks copied down at once;
// the rest follows as slots become free, in `wait` or `progress`.
namespace acc::collectives {
namespace {

constexpr const char* kStagingMemory = "staging buffers of collectives";
// Chunks are cut at multiples of this many bytes, so that copies of all dtypes stay aligned.
constexpr std::size_t kAlignment = 256;

}  // namespace

class StagedGroup::Op final : public Work {
 public:
  Op(StagedGroup* group, Plan plan, std::uint64_t first)
      : group_(group),
        plan_(std::move(plan)),
        issued_(group->device_->record(group->device_->compute())),
        first_(first),
        end_(first + std::max<std::size_t>(1, (plan_.total + plan_.piece - 1) / plan_.piece)) {}

  void wait() override {
    group_->meet_through(end_);
    if (done_) {
      group_->device_->wait(group_->device_->compute(), *done_);
    }
  }
  void wait_released() override { wait(); }

 private:
  friend class StagedGroup;
  [[nodiscard]] Range range(std::uint64_t chunk) const {
    const std::size_t begin = (chunk - first_) * plan_.piece;
    return {begin, std::min(plan_.piece, plan_.total - begin)};
  }

  StagedGroup* group_;
  Plan plan_;
  device::EventPtr issued_;  ///< point of the compute stream at the call
  device::EventPtr done_;    ///< the last copy up so far; null before the first
  std::uint64_t first_;      ///< the collective's chunks are [first_, end_)
  std::uint64_t end_;
};

StagedGroup::StagedGroup(std::shared_ptr<ProcessGroup> host, device::DevicePtr device,
                         std::size_t chunk_nbytes)
    : host_(std::move(host)),
      device_(std::move(device)),
      chunk_nbytes_(std::max(chunk_nbytes, kAlignment * static_cast<std::size_t>(host_->size()))),
      down_(device_->make_stream("stage down")),
      up_(device_->make_stream("stage up")) {
  const auto ranks = static_cast<std::size_t>(size());
  for (Slot& slot : slots_) {
    slot.contribution = host_->allocate_contribution(chunk_nbytes_);
    slot.gathered = host_->allocate_gathered(chunk_nbytes_);
    slot.result = device_->allocate_host(2 * chunk_nbytes_ / ranks, kStagingMemory);
    device_->pin(slot.contribution->data(), chunk_nbytes_);
    device_->pin(slot.gathered->data(), chunk_nbytes_);
  }
}

StagedGroup::~StagedGroup() {
  pending_.clear();
  for (Slot& slot : slots_) {
    try {  // copies in flight still use the memory that is unpinned and freed below
      device_->record(*down_)->synchronize();
      device_->record(*up_)->synchronize();
    } catch (const Error&) {  // the device failed, which was reported where the work was issued
    }
    device_->unpin(slot.gathered->data());
    device_->unpin(slot.contribution->data());
  }
}

std::string StagedGroup::describe() const {
  return fmt::format("staged over {}", host_->describe());
}

BufferPtr StagedGroup::allocate_gathered(std::size_t nbytes) {
  return std::make_shared<DeviceBuffer>(device_->allocate(nbytes, kGatheredMemory));
}

BufferPtr StagedGroup::allocate_contribution(std::size_t nbytes) {
  return std::make_shared<DeviceBuffer>(device_->allocate(nbytes, kContributionMemory));
}

// --- order ---

WorkPtr StagedGroup::issue(Plan plan) {
  auto op = std::make_shared<Op>(this, std::move(plan), issued_);
  issued_ = op->end_;
  pending_.push_back(op);
  copy_down_ahead();
  return op;
}

/// Issues a collective that moves no device memory. It needs no staging, but must keep its place
/// behind pending collectives, because all ranks have to call the host group in the same order.
WorkPtr StagedGroup::issue_on_host(std::function<WorkPtr()> call) {
  if (pending_.empty()) {
    return call();
  }
  return issue(
      {.down = {}, .meet = [call = std::move(call)](Slot&, Range) { return call(); }, .up = {}});
}

void StagedGroup::copy_down_ahead() {
  for (; started_ < issued_ && started_ < released_ + kSlots; ++started_) {
    const auto op = std::find_if(pending_.begin(), pending_.end(),
                                 [this](const OpPtr& each) { return started_ < each->end_; });
    const Plan& plan = (*op)->plan_;
    if (!plan.down) {
      continue;
    }
    Slot& slot = slots_[started_ % kSlots];
    // The all_reduce result of the slot's last chunk is copied up from `contribution`.
    if (slot.up) {
      device_->wait(*down_, *slot.up);
    }
    // Later chunks of the collective follow on the same stream and are ordered by it.
    if (started_ == (*op)->first_) {
      device_->wait(*down_, *(*op)->issued_);
    }
    plan.down(slot, (*op)->range(started_));
    slot.down = device_->record(*down_);
  }
}

/// Makes sure that no peer reads `slot.gathered` any more before the host group writes it again.
void StagedGroup::begin_use_of_gathered(Slot& slot) {
  if (std::exchange(slot.filled, true)) {
    if (host_->shares_gathered_memory()) {
      // One mapping for all ranks. Each rank enters the barrier only after its copy up of the
      // slot's last content: `meet_next` has waited for the event.
      host_->barrier()->wait();
    } else {
      host_->release_gathered(slot.gathered);
    }
  }
}

void StagedGroup::meet_next() {
  Op& op = *pending_.front();
  Slot& slot = slots_[met_ % kSlots];
  const Range range = op.range(met_);
  // The host reads and writes the slot from here on, so it waits for the copies from and to it.
  for (const auto& event : {std::exchange(slot.down, nullptr), std::exchange(slot.up, nullptr)}) {
    if (event) {
      event->synchronize();
    }
  }
  if (op.plan_.gathers) {
    begin_use_of_gathered(slot);
  }
  slot.work = op.plan_.meet(slot, range);
  slot.work->wait();
  // Releases the chunk before this one, one chunk late, when the peers have most likely read it.
  if (met_ > released_) {
    slots_[released_ % kSlots].work->wait_released();
    ++released_;
  }
  if (op.plan_.up) {
    // The program may still use the output until the point at which it issued the collective.
    if (met_ == op.first_) {
      device_->wait(*up_, *op.issued_);
    }
    op.plan_.up(slot, range);
    slot.up = device_->record(*up_);
    op.done_ = slot.up;
  }
  if (++met_ == op.end_) {
    pending_.pop_front();
  }
}

void StagedGroup::meet_through(std::uint64_t end) {
  while (met_ < end) {
    copy_down_ahead();
    meet_next();
  }
  copy_down_ahead();
}

void StagedGroup::progress() {
  host_->progress();
  copy_down_ahead();
}

// --- collectives ---

WorkPtr StagedGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  return all_gather_coded(shard, out, shard_nbytes, DType::byte, {});
}

WorkPtr StagedGroup::all_gather_coded(const void* shard, void* out, std::size_t shard_numel,
                                      DType dtype, BlockCode code) {
  const std::size_t shard_nbytes = shard_numel * nbytes_of(dtype);
  const auto ranks = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  const auto* const from = static_cast<const std::byte*>(shard);
  auto* const to = static_cast<std::byte*>(out);
  const bool in_place = to + me * shard_nbytes == from;
  return issue(
      {.total = shard_nbytes,
       .piece = chunk_nbytes_ / ranks / kAlignment * kAlignment,
       .down =
           [=, this](Slot& slot, Range range) {
             device_->copy(slot.contribution->data(), from + range.begin, range.length, *down_);
           },
       .meet =
           [=, this](Slot& slot, Range range) {
             return host_->all_gather_coded(slot.contribution->data(), slot.gathered->data(),
                                            range.length / nbytes_of(dtype), dtype, code);
           },
       .up =
           [=, this](Slot& slot, Range range) {
             for (std::size_t r = 0; r < ranks; ++r) {
               const bool as_is = r == me && !code;
               const auto* const part =
                   as_is ? from + range.begin : slot.gathered->data() + r * range.length;
               if (!as_is || !in_place) {
                 device_->copy(to + r * shard_nbytes + range.begin, part, range.length, *up_);
               }
             }
           },
       .gathers = true});
}

void StagedGroup::put_up(float* out, const void* sums, std::size_t numel, ReduceOptions options) {
  const std::size_t nbytes = numel * sizeof(float);
  if (!options.accumulate) {
    device_->copy(out, sums, nbytes, *up_);
    if (options.scale != 1.0F) {
      device_->add_scaled(out, DType::float32, out, numel, options.scale, false, *up_);
    }
    return;
  }
  if (!partial_) {
    partial_ = device_->allocate(slots_[0].result->nbytes(), kStagingMemory);
    device_->wait(*up_, *device_->record(device_->compute()));  // `allocate` zero-fills it there
  }
  device_->copy(partial_->data(), sums, nbytes, *up_);
  device_->add_scaled(partial_->data(), DType::float32, out, numel, options.scale, true, *up_);
}

WorkPtr StagedGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel,
                                    DType dtype, ReduceOptions options) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t width = nbytes_of(dtype);
  const auto* const from = static_cast<const std::byte*>(in);
  // A chunk holds the same range of every rank's slice, in rank order.
  return issue({.total = shard_numel,
                .piece = chunk_nbytes_ / ranks / kAlignment * kAlignment / width,
                .down =
                    [=, this](Slot& slot, Range range) {
                      for (std::size_t r = 0; r < ranks; ++r) {
                        device_->copy(slot.contribution->data() + r * range.length * width,
                                      from + (r * shard_numel + range.begin) * width,
                                      range.length * width, *down_);
                      }
                    },
                .meet =
                    [=, this](Slot& slot, Range range) {
                      return host_->reduce_scatter(slot.contribution->data(),
                                                   slot.result->as<float>(), range.length, dtype,
                                                   {.code = options.code});
                    },
                .up =
                    [=, this](Slot& slot, Range range) {
                      put_up(out + range.begin, slot.result->data(), range.length, options);
                    }});
}

WorkPtr StagedGroup::all_reduce(float* data, std::size_t numel, DType dtype, float scale) {
  return all_reduce_coded(data, numel, dtype, scale, {});
}

WorkPtr StagedGroup::all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                                      BlockCode code) {
  return issue({.total = numel,
                .piece = chunk_nbytes_ / sizeof(float),
                .down =
                    [=, this](Slot& slot, Range range) {
                      device_->copy(slot.contribution->data(), data + range.begin,
                                    range.length * sizeof(float), *down_);
                    },
                .meet =
                    [=, this](Slot& slot, Range range) {
                      return host_->all_reduce_coded(slot.contribution->as<float>(), range.length,
                                                     dtype, scale, code);
                    },
                .up =
                    [=, this](Slot& slot, Range range) {
                      device_->copy(data + range.begin, slot.contribution->data(),
                                    range.length * sizeof(float), *up_);
                    }});
}

WorkPtr StagedGroup::all_reduce(std::span<double> data, ReduceOp op) {
  return issue_on_host([=, this] { return host_->all_reduce(data, op); });
}

WorkPtr StagedGroup::sum(double* data, std::size_t numel) {
  const std::size_t nbytes = numel * sizeof(double);
  return issue(
      {.total = numel,
       .piece = numel,
       .down = [=, this](Slot& slot,
                         Range) { device_->copy(slot.result->data(), data, nbytes, *down_); },
       .meet =
           [=, this](Slot& slot, Range) {
             return host_->all_reduce(std::span(slot.result->as<double>(), numel), ReduceOp::sum);
           },
       .up = [=, this](Slot& slot,
                       Range) { device_->copy(data, slot.result->data(), nbytes, *up_); }});
}

WorkPtr StagedGroup::broadcast(void* data, std::size_t nbytes, int root) {
  auto* const at = static_cast<std::byte*>(data);
  Plan plan{.total = nbytes,
            .piece = chunk_nbytes_,
            .down = {},
            .meet =
                [=, this](Slot& slot, Range range) {
                  return host_->broadcast(slot.contribution->data(), range.length, root);
                },
            .up = {}};
  if (rank() == root) {
    plan.down = [=, this](Slot& slot, Range range) {
      device_->copy(slot.contribution->data(), at + range.begin, range.length, *down_);
    };
  } else {
    plan.up = [=, this](Slot& slot, Range range) {
      device_->copy(at + range.begin, slot.contribution->data(), range.length, *up_);
    };
  }
  return issue(std::move(plan));
}

WorkPtr StagedGroup::barrier() {
  return issue_on_host([this] { return host_->barrier(); });
}

}  // namespace acc::collectives
