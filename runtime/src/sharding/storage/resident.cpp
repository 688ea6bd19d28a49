// SPDX-License-Identifier: Apache-2.0
#include "sharding/weight_storage.hpp"

namespace acc::sharding {
namespace {

using collectives::BufferPtr;
using collectives::ProcessGroup;
using collectives::WorkPtr;

/// The full parameter stays in gathered memory and the shard is a slice of it. Three uses: ZeRO 1,
/// a shard group that shares memory (the gather copies nothing), and persistent parameters.
class Resident final : public WeightStorage {
 public:
  Resident(const Context& context, GatherWindow& publications, const FlatLayout& layout,
           bool persistent)
      : context_(context),
        publications_(publications),
        group_(*context.groups.shard),
        shard_(layout.shard(group_.rank())),
        shard_nbytes_(static_cast<std::size_t>(shard_.numel) *
                      nbytes_of(layout.precision.gathered)),
        persistent_(persistent),
        full_(group_.allocate_gathered(shard_nbytes_ * static_cast<std::size_t>(group_.size()))) {}

  Shard owned() const override { return shard_; }
  std::byte* own() const override {
    context_.guard->open(full_->data());
    return full_->data() + shard_nbytes_ * static_cast<std::size_t>(group_.rank());
  }

  Gathering begin_unshard() override {
    if (persistent_) {
      const bool gathers = stale_;
      if (gathers) {
        gather_ = gather();
        stale_ = false;
      }
      return {.gathers = gathers, .copies = gathers && !group_.shares_gathered_memory()};
    }
    // Gathered by `publish`. Counted as a gather if the strategy would gather here; nothing moves.
    return {.gathers = context_.on.shard_parameters};
  }

  const std::byte* finish_unshard() override {
    settle();
    return full_->data();
  }

  void settle() override {
    if (gather_) {
      gather_->wait();
      gather_.reset();
    }
  }
  void reshard(NextUse) override {}

  /// Persistent parameters are gathered by their next use. Others are gathered now, in the order of
  /// the flat parameters on all ranks, while the optimizer updates the next ones.
  void publish() override {
    if (persistent_) {
      stale_ = true;
    } else if (!context_.announces_together()) {
      const std::int64_t numel = shard_.numel * group_.size();
      gather_ = publications_.start(numel, [this] { return gather(); });
    }
    if (context_.guard->on()) {
      settle();
      context_.guard->hide(full_->data());
    }
  }

  void renew() override {
    gather_.reset();
    full_ = group_.renew(full_);
    stale_ = true;
  }

  bool keeps_address() const override { return true; }

  std::int64_t held_nbytes() const override {
    // ZeRO 1 keeps all weights by definition; the report does not divide by the ranks that share
    // the pages.
    const int sharers = context_.on.shard_parameters ? full_->sharers() : 1;
    return static_cast<std::int64_t>(full_->nbytes()) / sharers;
  }

 private:
  WorkPtr gather() { return group_.all_gather(own(), full_->data(), shard_nbytes_); }

  const Context& context_;
  GatherWindow& publications_;
  ProcessGroup& group_;
  Shard shard_;
  std::size_t shard_nbytes_;
  bool persistent_;
  bool stale_ = true;  ///< persistent: the weights have changed since the last gather
  BufferPtr full_;
  WorkPtr gather_;
};

}  // namespace

std::unique_ptr<WeightStorage> make_resident(const Context& context, GatherWindow& publications,
                                             const FlatLayout& layout, bool persistent) {
  return std::make_unique<Resident>(context, publications, layout, persistent);
}

}  // namespace acc::sharding
