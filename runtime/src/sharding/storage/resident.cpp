#include "sharding/storage/placements.hpp"

namespace acc::sharding {
namespace {

using collectives::BufferPtr;
using collectives::ProcessGroup;
using collectives::WorkPtr;

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

}  // namespace

std::unique_ptr<WeightStorage> make_resident(Engine& engine, const FlatLayout& layout) {
  return std::make_unique<Resident>(engine, layout);
}

}  // namespace acc::sharding
