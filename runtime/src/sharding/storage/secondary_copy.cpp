// SPDX-License-Identifier: Apache-2.0
#include "sharding/storage/secondary_copy.hpp"

namespace acc::sharding {

SecondaryCopy::SecondaryCopy(const Context& context, GatherPool& gathers, std::size_t full_nbytes)
    : context_(context),
      gathers_(gathers),
      group_(*context.groups.secondary),
      lasts_to_step_(context.settings.sharding.hpz_partition_size > 1),
      full_nbytes_(full_nbytes),
      part_nbytes_(full_nbytes / static_cast<std::size_t>(group_.size())),
      memory_(group_.shares_gathered_memory() ? group_.allocate_gathered(full_nbytes)
                                              : group_.allocate_contribution(part_nbytes_)) {}

std::int64_t SecondaryCopy::held_nbytes() const {
  return static_cast<std::int64_t>(memory_->nbytes()) / memory_->sharers();
}

/// Copies this rank's part of the gathered weights. In shared memory the all_gather moves nothing
/// but waits until every rank of the group has written its part.
void SecondaryCopy::keep(const std::byte* full) {
  const std::size_t offset = part_nbytes_ * static_cast<std::size_t>(group_.rank());
  context_.guard->open(memory_->data());
  std::byte* part = memory_->data() + (group_.shares_gathered_memory() ? offset : 0);
  context_.device->copy(part, full + offset, part_nbytes_, context_.device->compute());
  valid_ = true;
  if (group_.shares_gathered_memory()) {
    gather_ = group_.all_gather(part, memory_->data(), part_nbytes_);
  }
}

Gathering SecondaryCopy::begin_unshard() {
  const bool copies = !group_.shares_gathered_memory();
  if (copies) {
    full_ = gathers_.acquire(full_nbytes_);
    gather_ = group_.all_gather(memory_->data(), full_->data(), part_nbytes_);
  }
  return {.gathers = true, .copies = copies, .over_secondary = true};
}

const std::byte* SecondaryCopy::finish_unshard() {
  settle();
  return full_ ? full_->data() : memory_->data();
}

void SecondaryCopy::settle() {
  if (gather_) {
    gather_->wait();
    gather_.reset();
  }
}

void SecondaryCopy::renew() {
  gather_.reset();
  full_.reset();
  memory_ = group_.renew(memory_);
  valid_ = false;
}

void SecondaryCopy::reshard(const std::byte* full, NextUse next) {
  settle();  // the gather may have been started early and not used
  if (full_) {
    gathers_.release(full_);
    full_.reset();
  }
  // hpZ's copy serves every later gather before the step; a reshard size's copy only the backward.
  const bool wanted = lasts_to_step_ ? next != NextUse::unknown : next == NextUse::backward;
  if (wanted && !valid_ && full != nullptr) {
    keep(full);
  } else if (!wanted && !lasts_to_step_) {
    valid_ = false;
  }
}

}  // namespace acc::sharding
