// SPDX-License-Identifier: Apache-2.0
#include "sharding/weight_storage.hpp"

namespace acc::sharding {
namespace {

/// Every rank owns the whole flat parameter: nothing is gathered or freed. Used by NO_SHARD and for
/// ignored parameters.
class Replicated final : public WeightStorage {
 public:
  Replicated(const Context& context, const FlatLayout& layout)
      : guard_(*context.guard),
        owned_{0, layout.padded_numel},
        memory_(context.device->allocate(
            static_cast<std::size_t>(layout.padded_numel) * nbytes_of(layout.precision.gathered),
            "weights")) {}

  Shard owned() const override { return owned_; }
  std::byte* own() const override {
    guard_.open(memory_->data());
    return memory_->data();
  }
  Gathering begin_unshard() override { return {}; }
  const std::byte* finish_unshard() override { return memory_->data(); }
  void reshard(NextUse) override {}
  void publish() override { guard_.hide(memory_->data()); }
  void settle() override {}
  void renew() override {}
  bool keeps_address() const override { return true; }
  std::int64_t held_nbytes() const override { return static_cast<std::int64_t>(memory_->nbytes()); }

 private:
  ViewGuard& guard_;
  Shard owned_;
  device::MemoryPtr memory_;
};

}  // namespace

std::unique_ptr<WeightStorage> make_replicated(const Context& context, const FlatLayout& layout) {
  return std::make_unique<Replicated>(context, layout);
}

}  // namespace acc::sharding
