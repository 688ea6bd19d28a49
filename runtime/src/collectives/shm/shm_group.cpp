// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/shm_group.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

namespace acc::collectives {
namespace {

/// Text of everything in which two ranks' calls must agree, such as "all_reduce of 8 x float32".
std::string call_text(const OpDescriptor& call, std::uint32_t sequence) {
  std::string text =
      fmt::format("{} of {} x {}", to_string(call.kind), call.count, to_string(call.dtype));
  if (call.kind == OpKind::broadcast) {
    text += fmt::format(" from root {}", call.detail);
  } else if (call.kind == OpKind::scalars) {
    text += fmt::format(" by operation {}", call.detail);
  }
  if (call.sequence != sequence) {
    text += fmt::format(" as number {}", call.sequence);
  }
  return text + (call.staged != 0 ? " in private memory" : "");
}

}  // namespace

/// Owns one mapping of a segment, and removes the segment from the group's table at its end.
class ShmGroup::Buffer final : public GroupBuffer {
 public:
  Buffer(std::shared_ptr<std::list<Segment>> segments, SharedMapping mapping,
         std::list<Segment>::iterator segment, std::size_t nbytes, std::size_t offset, int sharers)
      : segments_(std::move(segments)), mapping_(std::move(mapping)), segment_(segment) {
    data_ = mapping_.data() + offset;
    nbytes_ = nbytes;
    sharers_ = sharers;
  }
  ~Buffer() override { segments_->erase(segment_); }

  [[nodiscard]] bool one_part() const noexcept { return segment_->stride == 0; }
  /// Gives the mapping up: the buffer has no memory any more.
  SharedMapping give_up() noexcept { return std::move(mapping_); }

 private:
  std::shared_ptr<std::list<Segment>> segments_;
  SharedMapping mapping_;
  std::list<Segment>::iterator segment_;
};

class ShmGroup::Op final : public Work {
 public:
  Op(ShmGroup* group, std::uint32_t sequence, std::function<void()> execute, bool blocking,
     bool result_needs_all)
      : group_(group),
        sequence_(sequence),
        execute_(std::move(execute)),
        blocking_(blocking),
        result_needs_all_(result_needs_all) {}

  void wait() override {
    group_->complete_through(sequence_);
    if (result_needs_all_) {
      group_->await_finished(sequence_);
    }
  }
  void wait_released() override {
    group_->complete_through(sequence_);
    group_->await_finished(sequence_);
  }
  bool is_complete() const override {
    return !result_needs_all_ && static_cast<std::int32_t>(group_->completed_ - sequence_) >= 0;
  }

 private:
  friend class ShmGroup;
  ShmGroup* group_;
  std::uint32_t sequence_;
  std::function<void()> execute_;
  bool blocking_;          ///< needs the peers to take part while it runs; not run by `progress`
  bool result_needs_all_;  ///< peers write parts of this rank's result
};

ShmGroup::ShmGroup(GroupSpec spec, bool share_gathered)
    : channel_(std::move(spec)), share_gathered_(share_gathered) {
  barrier()->wait();
}

ShmGroup::~ShmGroup() {
  // Pending collectives are dropped. Peers that wait for them see that this rank has left.
  pending_.clear();
}

std::string ShmGroup::describe() const {
  return fmt::format("shm[{}]", fmt::join(channel_.spec().ranks, ","));
}

// --- order, waiting, agreement ---
//
// Every wait for a peer goes through ShmChannel::wait and therefore ends if the peer dies, leaves
// or aborts, or at the timeout. Descriptors of peers are copied before they are compared or used,
// because a faulty peer may change them at any time.

const OpDescriptor& ShmGroup::descriptor_of(int rank, std::uint32_t sequence) const {
  return channel_.control(rank).ring[sequence % kDescriptorRing];
}

std::string ShmGroup::name_of(std::uint32_t sequence) const {
  const OpDescriptor& mine = descriptor_of(rank(), sequence);
  return fmt::format("{} number {} of {} ({} x {})", to_string(mine.kind), sequence, describe(),
                     mine.count, to_string(mine.dtype));
}

WorkPtr ShmGroup::issue(OpDescriptor descriptor, std::function<void()> execute, bool blocking,
                        bool result_needs_all) {
  channel_.throw_if_aborted();
  const std::uint32_t sequence = issued_ + 1;
  // The ring slot is free once every rank has finished the collective that used it before.
  if (sequence > kDescriptorRing) {
    const std::uint32_t reused = sequence - kDescriptorRing;
    complete_through(reused);
    await_finished(reused);
  }
  issued_ = sequence;
  descriptor.sequence = sequence;
  channel_.own().ring[sequence % kDescriptorRing] = descriptor;
  if (!defers_) {
    post();
  }
  auto op = std::make_shared<Op>(this, sequence, std::move(execute), blocking, result_needs_all);
  pending_.push_back(op);
  return op;
}

void ShmGroup::post() {
  if (channel_.own().posted.value.load(std::memory_order_relaxed) != issued_) {
    ShmChannel::advance(channel_.own().posted, issued_);
  }
}

void ShmGroup::defer_posts(bool defer) {
  defers_ = defer;
  if (!defer) {
    post();
  }
}

void ShmGroup::fail_different(std::uint32_t sequence) {
  constexpr std::chrono::seconds kLimit{5};
  channel_.fail_different(sequence, describe(), &RankControl::posted, sequence, kLimit, [&](int r) {
    const OpDescriptor call = descriptor_of(r, sequence);  // a copy: the peer may change it
    return call_text(call, sequence);
  });
}

void ShmGroup::await_posted(std::uint32_t sequence) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      channel_.wait(channel_.control(r).posted, sequence, r, [&] { return name_of(sequence); });
      const OpDescriptor& mine = descriptor_of(rank(), sequence);
      const OpDescriptor theirs = descriptor_of(r, sequence);  // a copy: the peer may change it
      if (!mine.same_call(theirs) || mine.sequence != theirs.sequence) {
        fail_different(sequence);
      }
    }
  }
}

void ShmGroup::await_finished(std::uint32_t sequence) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank()) {
      channel_.wait(channel_.control(r).finished, sequence, r,
                    [&] { return fmt::format("the end of collective {}", sequence); });
    }
  }
}

void ShmGroup::complete_through(std::uint32_t sequence) {
  post();
  while (static_cast<std::int32_t>(completed_ - sequence) < 0) {
    const OpPtr op = pending_.front();
    // A collective that every rank has posted may still complete after a peer's abort. After this
    // rank's own abort it must not run, because the memory that it uses may be freed already.
    if (channel_.aborted_here() || !all_posted(op->sequence_)) {
      channel_.throw_if_aborted();
    }
    await_posted(op->sequence_);
    if (op->execute_) {
      op->execute_();
      op->execute_ = nullptr;
    }
    pending_.pop_front();
    completed_ = op->sequence_;
    ShmChannel::advance(channel_.own().finished, completed_);
  }
}

// Runs only collectives that need no help by the peers, because a caller of `progress` must not
// block.
void ShmGroup::progress() {
  while (!pending_.empty() && !pending_.front()->blocking_ &&
         all_posted(pending_.front()->sequence_)) {
    complete_through(pending_.front()->sequence_);
  }
}

// --- memory ---

BufferPtr ShmGroup::allocate(std::size_t nbytes, bool one_part, Buffer* replaced) {
  // Whole pages, so that each rank's part can be protected on its own.
  const std::size_t stride = (nbytes + 4095) / 4096 * 4096;
  const std::size_t total = one_part ? stride : stride * static_cast<std::size_t>(size());
  SharedMapping mapping;
  if (rank() == 0) {
    mapping = channel_.make_shared(total);  // sent before the post, so no rank waits for it in vain
  }
  auto work = issue(
      {.kind = OpKind::allocate, .count = total},
      [&] {
        if (rank() != 0) {
          mapping = channel_.take_shared(total);
        }
      },
      true);
  work->wait_released();  // all ranks have mapped it
  mapping.close_descriptor();
  if (replaced != nullptr) {
    mapping.replace(replaced->give_up());
  }
  // All ranks allocate in the same order, so the same number means the same segment on every rank.
  segments_->push_back({next_segment_++, mapping.data(), total, one_part ? 0 : stride});
  const auto segment = std::prev(segments_->end());
  const std::size_t offset = one_part ? 0 : stride * static_cast<std::size_t>(rank());
  return std::make_shared<Buffer>(segments_, std::move(mapping), segment, nbytes, offset,
                                  one_part ? size() : 1);
}

BufferPtr ShmGroup::allocate_gathered(std::size_t nbytes) {
  return allocate(nbytes, share_gathered_);
}

BufferPtr ShmGroup::allocate_contribution(std::size_t nbytes) {
  return allocate(nbytes, false);
}

BufferPtr ShmGroup::allocate_common(std::size_t nbytes) {
  return allocate(nbytes, true);
}

BufferPtr ShmGroup::renew(const BufferPtr& old) {
  auto& replaced = dynamic_cast<Buffer&>(*old);
  return allocate(old->nbytes(), replaced.one_part(), &replaced);
}

void ShmGroup::release_gathered(const BufferPtr& gathered) {
  if (share_gathered_) {  // no other rank reads private memory
    released_[gathered->data()] = barrier();
  }
}

std::optional<ShmGroup::Place> ShmGroup::find(const void* data) const {
  const auto* byte = static_cast<const std::byte*>(data);
  for (const Segment& each : *segments_) {
    const std::byte* const own = each.base + each.stride * static_cast<std::size_t>(rank());
    if (byte >= own && byte < own + each.part_nbytes()) {
      return Place{&each, static_cast<std::size_t>(byte - own)};
    }
  }
  return std::nullopt;
}

void ShmGroup::describe_input(OpDescriptor& descriptor, const std::optional<Place>& place) {
  descriptor.staged = place ? 0 : 1;
  if (place) {
    descriptor.segment = place->segment->id;
    descriptor.offset = place->offset;
  }
}

const std::byte* ShmGroup::input_of(int rank, std::uint32_t sequence, std::size_t begin,
                                    std::size_t nbytes, std::size_t width) {
  const OpDescriptor theirs = descriptor_of(rank, sequence);  // a copy: the peer may change it
  const auto segment = std::find_if(segments_->begin(), segments_->end(),
                                    [&](const Segment& s) { return s.id == theirs.segment; });
  if (segment == segments_->end()) {
    channel_.fail(fmt::format("rank {} refers to shared segment {} in {}, which does not exist",
                              channel_.global_rank(rank), theirs.segment, name_of(sequence)),
                  channel_.global_rank(rank));
  }
  const std::size_t part = segment->part_nbytes();
  // Written so that no sum can overflow: offset and part come from different processes.
  if (theirs.offset > part || begin > part - theirs.offset ||
      nbytes > part - theirs.offset - begin || theirs.offset % width != 0) {
    channel_.fail(fmt::format("rank {} published an invalid input for {}: it begins at byte {} of "
                              "a shared segment of {} bytes, and {} bytes from its byte {} on lie "
                              "outside",
                              channel_.global_rank(rank), name_of(sequence), theirs.offset, part,
                              nbytes, begin),
                  channel_.global_rank(rank));
  }
  return segment->base + segment->stride * static_cast<std::size_t>(rank) + theirs.offset + begin;
}

}  // namespace acc::collectives
