#pragma once

#include "acc/runtime/initializer.hpp"
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
  FlatParameter(Engine& engine, std::vector<ParameterRecord> parameters, bool trainable);

  [[nodiscard]] const FlatLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<ParameterRecord>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool trainable() const noexcept { return trainable_; }

  // --- weights
  /// float32 master weights of `owned()`; after a change call `publish`.
  [[nodiscard]] float* master();
  [[nodiscard]] Shard owned() const { return storage_->owned(); }
  /// Where the optimizer puts the rounded weights, or null where master and compute are one.
  [[nodiscard]] std::uint16_t* low_precision();
  void initialize(std::uint64_t seed);
  void round_master();
  /// The full master weights, [padded_numel], on every rank. Collective.
  std::vector<float> gather_master();
  void publish() { storage_->publish(); }
  /// Waits for every collective that still uses this flat parameter's memory.
  void settle();

  void begin_unshard();
  /// The full parameter in float32, [padded_numel].
  const float* unshard();
  void reshard(bool gathers_again);

  // --- gradients of the micro-step that runs
  void open_gradients();
  struct Target {
    float* data;
    bool written;
  };
  /// Where parameter `index` has its full gradient, and whether it was written before. Marks it.
  Target gradient(std::size_t index);
  [[nodiscard]] bool gradients_open() const noexcept { return full_gradient_ != nullptr; }
  /// Ends a micro-step: reduces to the shard where gradients are sharded, else (`last`) over all.
  void close_gradients(bool last);
  /// Reduces what is left before a step.
  void flush_gradients();
  /// Between replicas; after every rank's reduction.
  collectives::WorkPtr all_reduce_replicas();

  /// The reduced gradient of `owned()`; valid after the reductions have been waited for.
  [[nodiscard]] const float* reduced_gradient() const;
  void wait_reduction();
  void forget_gradients();

  // --- figures
  [[nodiscard]] std::int64_t master_nbytes() const;
  [[nodiscard]] std::int64_t gradient_nbytes() const;
  [[nodiscard]] std::int64_t gathered_nbytes() const;

 private:
  void zero_unwritten();
  void reduce_to_shard();
  void reduce_full();

  Engine& engine_;
  std::vector<ParameterRecord> parameters_;
  bool trainable_;
  FlatLayout layout_;
  std::unique_ptr<WeightStorage> storage_;
  std::vector<float> master_;  ///< only in low precision; else the storage is the master
  bool unsharded_ = false;
  const float* view_ = nullptr;
  std::vector<float> widened_;

  bool keeps_full_gradient_ = false;
  std::vector<bool> written_;
  float* full_gradient_ = nullptr;
  std::vector<float> gradient_scratch_;     ///< low precision: what the program writes to
  collectives::BufferPtr gradient_buffer_;  ///< what the peers read
  collectives::BufferPtr shard_gradient_;
  collectives::WorkPtr reduction_;
  bool accumulated_ = false;
};

}  // namespace acc::sharding
