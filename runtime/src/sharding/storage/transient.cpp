// SPDX-License-Identifier: Apache-2.0
#include "sharding/storage/secondary_copy.hpp"
#include "sharding/weight_storage.hpp"

#include <utility>

namespace acc::sharding {
namespace {

using collectives::BufferPtr;
using collectives::ProcessGroup;
using collectives::WorkPtr;

/// Frozen parameters may have other dtypes, which are sent as they are.
bool is_coded(DType dtype) noexcept {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

/// Only the shard stays in memory. Each use gathers the full parameter into a buffer of the pool
/// and gives the buffer back when the parameter is freed. For groups that share no memory: GPUs,
/// several machines.
class Transient final : public WeightStorage {
 public:
  Transient(const Context& context, Pools& pools, const FlatLayout& layout)
      : context_(context),
        pools_(pools),
        group_(*context.groups.shard),
        shard_(layout.shard(group_.rank())),
        dtype_(layout.precision.gathered),
        code_(is_coded(dtype_) ? context.codes.weights : BlockCode{}),
        shard_nbytes_(static_cast<std::size_t>(shard_.numel) * nbytes_of(dtype_)),
        full_nbytes_(shard_nbytes_ * static_cast<std::size_t>(group_.size())) {
    if (context_.offload_param()) {
      host_shard_ = context_.allocate_offloaded_shard(shard_nbytes_);
    } else {
      shard_memory_ = group_.allocate_contribution(shard_nbytes_);
    }
    reads_ahead_ = host_shard_ && context_.in_file(host_shard_->data()) &&
                   (group_.size() == 1 || group_.shares_gathered_memory());
    if (pools_.secondary_gathers) {
      secondary_ =
          std::make_unique<SecondaryCopy>(context_, *pools_.secondary_gathers, full_nbytes_);
    }
  }

  Shard owned() const override { return shard_; }
  std::byte* own() const override {
    return host_shard_ ? host_shard_->data() : shard_memory_->data();
  }
  bool own_offloaded() const override {
    return host_shard_ != nullptr && context_.device->kind() != settings::Device::cpu;
  }

  Gathering begin_unshard() override {
    if (secondary_ && secondary_->valid()) {
      return secondary_->begin_unshard();
    }
    full_ = pools_.gathers.acquire(full_nbytes_);
    if (reads_ahead_) {
      fetched_ = pools_.fetches.acquire(swap::round_up(shard_nbytes_, swap::kPage));
      reading_ = context_.swap->start_reading(own(), fetched_->data(), shard_nbytes_);
      awaits_reading_ = true;
      return {.gathers = true, .copies = true};
    }
    gather_ = group_.all_gather_coded(shard_on_device(), full_->data(),
                                      static_cast<std::size_t>(shard_.numel), dtype_, code_);
    return {.gathers = true, .copies = true};
  }

  const std::byte* finish_unshard() override {
    if (!full_) {
      return secondary_->finish_unshard();
    }
    wait_for_gather();
    return full_->data();
  }

  void reshard(NextUse next) override {
    wait_for_gather();  // the gather may have been started early and not used
    if (secondary_) {
      secondary_->reshard(full_ ? full_->data() : nullptr, next);
    }
    if (full_) {
      pools_.gathers.release(full_);
      full_.reset();
    }
  }

  void publish() override {
    if (secondary_) {
      secondary_->invalidate();
    }
  }
  void settle() override {
    wait_for_gather();
    if (secondary_) {
      secondary_->settle();
    }
  }
  void renew() override {
    gather_.reset();
    reading_.reset();  // waits for it
    awaits_reading_ = false;
    fetched_.reset();
    full_.reset();
    if (shard_memory_) {
      shard_memory_ = group_.renew(shard_memory_);
    }
    if (secondary_) {
      secondary_->renew();
    }
  }
  bool keeps_address() const override { return false; }
  std::int64_t held_nbytes() const override {
    return (context_.in_file(own()) ? 0 : static_cast<std::int64_t>(shard_nbytes_)) +
           (secondary_ ? secondary_->held_nbytes() : 0);
  }

 private:
  /// Returns the shard in memory that peers can read. An offloaded shard is copied to such memory
  /// on the fetch stream; the copy is kept until they have read it.
  const std::byte* shard_on_device() {
    if (!host_shard_) {
      return own();
    }
    // The fetch waits for the compute stream, behind which the last gather from this memory is,
    // then overlaps with work that is issued later. The gather runs after the fetch.
    device::Device& device = *context_.device;
    fetched_ = pools_.fetches.acquire(shard_nbytes_);
    device.wait(*context_.fetches, *device.record(device.compute()));
    (context_.swap ? *context_.swap : device)
        .copy(fetched_->data(), own(), shard_nbytes_, *context_.fetches);
    group_.after(device.record(*context_.fetches));
    return fetched_->data();
  }

  /// Starts the gather of a shard that has been read ahead.
  void gather_read() {
    if (std::exchange(awaits_reading_, false)) {
      if (reading_) {
        reading_->wait();
        reading_.reset();
      }
      gather_ = group_.all_gather_coded(fetched_->data(), full_->data(),
                                        static_cast<std::size_t>(shard_.numel), dtype_, code_);
    }
  }

  void wait_for_gather() {
    gather_read();
    if (gather_) {
      fetched_ ? gather_->wait_released() : gather_->wait();
      gather_.reset();
    }
    if (fetched_) {
      pools_.fetches.release(std::move(fetched_));
    }
  }

  const Context& context_;
  Pools& pools_;
  ProcessGroup& group_;
  Shard shard_;
  DType dtype_;
  BlockCode code_;
  std::size_t shard_nbytes_;
  std::size_t full_nbytes_;
  BufferPtr shard_memory_;        ///< the shard; null if parameters are offloaded
  device::MemoryPtr host_shard_;  ///< the offloaded shard, maybe in a file; else null
  BufferPtr fetched_;             ///< copy of an offloaded shard on the device during a gather
  /// True if `begin_unshard` only starts to read the shard from its file, and the gather begins
  /// when the full parameter is wanted. It then copies within one machine; one between machines
  /// begins with `begin_unshard`, which waits for the read.
  bool reads_ahead_ = false;
  bool awaits_reading_ = false;
  swap::SwapDevice::ReadingPtr reading_;  ///< into `fetched_`
  BufferPtr full_;
  WorkPtr gather_;
  std::unique_ptr<SecondaryCopy> secondary_;
};

}  // namespace

std::unique_ptr<WeightStorage> make_transient(const Context& context, Pools& pools,
                                              const FlatLayout& layout) {
  return std::make_unique<Transient>(context, pools, layout);
}

}  // namespace acc::sharding
