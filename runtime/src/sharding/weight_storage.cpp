#include "sharding/weight_storage.hpp"

#include "acc/base/error.hpp"

namespace acc::sharding {
namespace {

using collectives::BufferPtr;
using collectives::ProcessGroup;
using collectives::WorkPtr;

class Replicated final : public WeightStorage {
 public:
  Replicated(Engine& engine, const FlatLayout& layout)
      : owned_{0, layout.padded_numel},
        memory_(engine.device->allocate(
            static_cast<std::size_t>(layout.padded_numel) * nbytes_of(engine.precision.gathered),
            "weights")) {}

  Shard owned() const override { return owned_; }
  std::byte* own() const override { return memory_->data(); }
  bool begin_unshard() override { return false; }
  const std::byte* finish_unshard() override { return own(); }
  void reshard(bool) override {}
  void publish() override {}
  void settle() override {}
  bool always_full() const override { return true; }
  std::int64_t held_nbytes() const override { return static_cast<std::int64_t>(memory_->nbytes()); }

 private:
  Shard owned_;
  device::MemoryPtr memory_;
};

class Resident final : public WeightStorage {
 public:
  Resident(Engine& engine, const FlatLayout& layout)
      : group_(*engine.groups.shard),
        shard_(layout.shard(group_.rank())),
        width_(nbytes_of(engine.precision.gathered)),
        always_full_(!engine.on.shard_parameters),
        full_(group_.allocate_gathered(static_cast<std::size_t>(layout.padded_numel) * width_)) {}

  Shard owned() const override { return shard_; }
  std::byte* own() const override {
    return full_->data() + static_cast<std::size_t>(shard_.offset) * width_;
  }
  bool begin_unshard() override { return false; }
  const std::byte* finish_unshard() override {
    settle();
    return full_->data();
  }
  void settle() override {
    if (published_) {
      published_->wait();
      published_.reset();
    }
  }
  void reshard(bool) override {}
  void publish() override {
    published_ =
        group_.all_gather(own(), full_->data(), static_cast<std::size_t>(shard_.numel) * width_);
  }
  bool always_full() const override { return always_full_; }
  std::int64_t held_nbytes() const override {
    // ZeRO 1 keeps all weights by definition, however many ranks share the pages.
    const int sharers = always_full_ ? 1 : full_->sharers();
    return static_cast<std::int64_t>(full_->nbytes()) / sharers;
  }

 private:
  ProcessGroup& group_;
  Shard shard_;
  std::size_t width_;
  bool always_full_;
  BufferPtr full_;
  WorkPtr published_;
};

// hpZ (ZeRO++, arXiv 2306.10209): a copy over fewer ranks, made when a unit is first freed, serves
// every gather until the next step.
class SecondaryCopy {
 public:
  SecondaryCopy(Engine& engine, std::size_t full_nbytes)
      : engine_(engine),
        group_(*engine.groups.hpz),
        full_nbytes_(full_nbytes),
        part_nbytes_(full_nbytes / static_cast<std::size_t>(group_.size())),
        memory_(group_.shares_gathered_memory() ? group_.allocate_gathered(full_nbytes)
                                                : group_.allocate_contribution(part_nbytes_)) {}

  [[nodiscard]] bool valid() const { return valid_; }
  void invalidate() { valid_ = false; }
  [[nodiscard]] std::int64_t held_nbytes() const {
    return static_cast<std::int64_t>(memory_->nbytes()) / memory_->sharers();
  }

  void keep(const std::byte* full) {
    if (valid_) {
      return;
    }
    const std::size_t offset = part_nbytes_ * static_cast<std::size_t>(group_.rank());
    std::byte* part = memory_->data() + (group_.shares_gathered_memory() ? offset : 0);
    engine_.device->copy(part, full + offset, part_nbytes_, engine_.device->compute());
    valid_ = true;
    if (group_.shares_gathered_memory()) {
      gather_ = group_.all_gather(part, memory_->data(), part_nbytes_);
    }
  }

  bool begin_unshard() {
    if (group_.shares_gathered_memory()) {
      return false;
    }
    full_ = engine_.hpz_gathers->acquire(full_nbytes_);
    gather_ = group_.all_gather(memory_->data(), full_->data(), part_nbytes_);
    return true;
  }

  const std::byte* finish_unshard() {
    settle();
    return full_ ? full_->data() : memory_->data();
  }

  void settle() {
    if (gather_) {
      gather_->wait();
      gather_.reset();
    }
  }

  void reshard() {
    settle();  // a gather that was started early and not used
    if (full_) {
      engine_.hpz_gathers->release(full_);
      full_.reset();
    }
  }

 private:
  Engine& engine_;
  ProcessGroup& group_;
  std::size_t full_nbytes_;
  std::size_t part_nbytes_;
  BufferPtr memory_;
  BufferPtr full_;
  WorkPtr gather_;
  bool valid_ = false;
};

class Transient final : public WeightStorage {
 public:
  Transient(Engine& engine, const FlatLayout& layout)
      : engine_(engine),
        group_(*engine.groups.shard),
        shard_(layout.shard(group_.rank())),
        shard_nbytes_(static_cast<std::size_t>(shard_.numel) *
                      nbytes_of(engine.precision.gathered)),
        full_nbytes_(shard_nbytes_ * static_cast<std::size_t>(group_.size())) {
    if (engine_.offload_param) {
      host_shard_ = engine_.device->allocate_host(shard_nbytes_, "weights");
    } else {
      shard_memory_ = group_.allocate_contribution(shard_nbytes_);
    }
    if (engine_.groups.hpz) {
      secondary_ = std::make_unique<SecondaryCopy>(engine_, full_nbytes_);
    }
  }

  Shard owned() const override { return shard_; }
  std::byte* own() const override {
    return host_shard_ ? host_shard_->data() : shard_memory_->data();
  }
  bool own_offloaded() const override { return host_shard_ != nullptr; }

  bool begin_unshard() override {
    if (secondary_ && secondary_->valid()) {
      return secondary_->begin_unshard();
    }
    full_ = engine_.gathers->acquire(full_nbytes_);
    gather_ = group_.all_gather(shard_on_device(), full_->data(), shard_nbytes_);
    return true;
  }

  const std::byte* finish_unshard() override {
    if (!full_) {
      return secondary_->finish_unshard();
    }
    wait_for_gather();
    return full_->data();
  }

  void reshard(bool gathers_again) override {
    if (!full_) {
      if (secondary_) {
        secondary_->reshard();
      }
      return;
    }
    wait_for_gather();  // it was started early and may not have been used
    if (secondary_ && gathers_again) {
      secondary_->keep(full_->data());
    }
    engine_.gathers->release(full_);
    full_.reset();
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
  bool always_full() const override { return false; }
  std::int64_t held_nbytes() const override {
    const std::size_t on_device = host_shard_ ? 0 : shard_nbytes_;
    return static_cast<std::int64_t>(on_device) + (secondary_ ? secondary_->held_nbytes() : 0);
  }

 private:
  const std::byte* shard_on_device() {
    if (!host_shard_) {
      return own();
    }
    // Beside what is computed already, and the gather after it.
    device::Device& device = *engine_.device;
    fetched_ = engine_.scratch->acquire(shard_nbytes_);
    device.wait(*engine_.fetches, *device.record(device.compute()));
    device.copy(fetched_->data(), own(), shard_nbytes_, *engine_.fetches);
    group_.after(device.record(*engine_.fetches));
    return fetched_->data();
  }

  void wait_for_gather() {
    if (gather_) {
      fetched_ ? gather_->wait_released() : gather_->wait();
      gather_.reset();
    }
    if (fetched_) {
      engine_.scratch->release(std::move(fetched_));
    }
  }

  Engine& engine_;
  ProcessGroup& group_;
  Shard shard_;
  std::size_t shard_nbytes_;
  std::size_t full_nbytes_;
  BufferPtr shard_memory_;        ///< null where parameters are offloaded
  device::MemoryPtr host_shard_;  ///< … and this is where the shard is then
  device::MemoryPtr fetched_;     ///< its copy on the device while it is gathered
  BufferPtr full_;
  WorkPtr gather_;
  std::unique_ptr<SecondaryCopy> secondary_;
};

}  // namespace

std::unique_ptr<WeightStorage> make_weight_storage(Engine& engine, const FlatLayout& layout,
                                                   const FlatTraits& traits) {
  if (engine.offload_param && !engine.on.shard_parameters) {
    throw Error(Errc::config,
                "offload of parameters needs a strategy that shards them (FULL_SHARD, "
                "SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2, ZeRO 3)");
  }
  if (!engine.on.shard_optimizer || traits.ignored) {
    return std::make_unique<Replicated>(engine, layout);
  }
  const bool shard_is_slice =
      engine.groups.shard->shares_gathered_memory() && !engine.offload_param;
  if (!engine.on.shard_parameters || shard_is_slice) {
    return std::make_unique<Resident>(engine, layout);
  }
  return std::make_unique<Transient>(engine, layout);
}

}  // namespace acc::sharding
