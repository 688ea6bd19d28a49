#pragma once

#include "acc/runtime/initializer.hpp"
#include "device/device.hpp"
#include "sharding/engine.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/weight_storage.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::sharding {

/// A parameter as the program registered it.
struct ParameterRecord {
  std::string name;  ///< full name
  std::vector<std::string> aliases;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  Initializer initializer;
  bool trainable = true;
  bool weight_decay = true;
};

/// The parameters of a unit that are gathered together, and their gradients. A unit has one for
/// what is trained and one for what is frozen, so that a gradient shard is always where its weight
/// is.
class FlatParameter {
 public:
  FlatParameter(Engine& engine, std::string unit_name, std::vector<ParameterRecord> parameters,
                bool trainable);

  [[nodiscard]] const FlatLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<ParameterRecord>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool trainable() const noexcept { return trainable_; }

  // --- weights
  /// float32 master weights of `owned()`, where the optimizer updates; after a change call
  /// `publish`.
  [[nodiscard]] float* master();
  [[nodiscard]] Shard owned() const { return storage_->owned(); }
  /// Where the optimizer puts the weights rounded to the compute dtype, or null where that is
  /// float32.
  [[nodiscard]] void* rounded();
  void initialize(std::uint64_t seed);
  void round_master();
  /// The full master weights, [padded_numel], on every rank, in host memory. Collective.
  std::vector<float> gather_master();
  /// Says that master and rounded weights have changed: the next unshard sees them on every rank.
  void publish();
  /// Waits for every collective that still uses this flat parameter's memory.
  void settle();

  void begin_unshard();
  /// The full parameter in the view dtype, [padded_numel].
  const void* unshard();
  void reshard(bool gathers_again);

  // --- gradients of the micro-step that runs
  struct Target {
    void* data;
    bool written;
  };
  /// Where parameter `index` has its full gradient in the view dtype, and whether it was written
  /// before. Marks it.
  Target gradient(std::size_t index);
  /// Ends a micro-step: reduces to the shard where gradients are sharded, else (`last`) over all.
  void close_gradients(bool last);
  /// Reduces what is left before a step.
  void flush_gradients();
  /// Between replicas; after every rank's reduction. `wait_reduction` then waits for it.
  void all_reduce_replicas();
  /// Brings an offloaded optimizer what it has not been brought yet.
  void bring_gradients();

  /// The reduced gradient of `owned()`, where the optimizer updates; valid after the reductions
  /// have been waited for.
  [[nodiscard]] const float* reduced_gradient() const;
  void wait_reduction();
  void forget_gradients();

  // --- figures
  [[nodiscard]] std::int64_t master_nbytes() const;
  [[nodiscard]] std::int64_t gradient_nbytes() const;
  [[nodiscard]] std::int64_t gathered_nbytes() const;

 private:
  [[nodiscard]] bool master_is_gathered() const noexcept;
  void allocate_gradients();
  void open_gradients();
  [[nodiscard]] bool gradients_open() const noexcept { return target_ != nullptr; }
  void zero_unwritten();
  void reduce_to_shard();
  void offload_reduced(const device::MemoryPtr& reduced, bool accumulate);
  collectives::WorkPtr all_reduce_replicas(float* shard);
  void add_to_full();
  void reduce_full();

  Engine& engine_;
  std::string unit_name_;
  std::vector<ParameterRecord> parameters_;
  bool trainable_;
  FlatLayout layout_;
  std::unique_ptr<WeightStorage> storage_;
  device::MemoryPtr master_;   ///< null where what is gathered is the master
  device::MemoryPtr rounded_;  ///< null where the optimizer reaches the gathered weights
  bool unsharded_ = false;
  const void* view_ = nullptr;
  device::MemoryPtr widened_;

  bool keeps_full_gradient_ = false;
  std::vector<bool> written_;
  std::byte* target_ = nullptr;             ///< where the program writes: one of the next two
  device::MemoryPtr gradient_scratch_;      ///< where view and reduction differ in dtype
  collectives::BufferPtr gradient_buffer_;  ///< what the peers read
  collectives::BufferPtr shard_gradient_;
  device::MemoryPtr host_gradient_;  ///< the reduced gradient, where the optimizer is offloaded
  collectives::WorkPtr reduction_;
  bool accumulated_ = false;
  bool full_begun_ = false;  ///< the whole gradient holds earlier micro-steps
};

}  // namespace acc::sharding
