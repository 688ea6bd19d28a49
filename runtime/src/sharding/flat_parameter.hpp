#pragma once

#include "device/device.hpp"
#include "sharding/engine.hpp"
#include "sharding/flat_gradient.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/weight_storage.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::sharding {

/// Parameters of a unit that are stored, gathered and reduced as one array (`plan_flats`).
class FlatParameter {
 public:
  FlatParameter(Engine& engine, std::string unit_name, std::vector<ParameterRecord> parameters,
                FlatTraits traits);

  [[nodiscard]] const std::string& unit_name() const noexcept { return unit_name_; }
  [[nodiscard]] const FlatLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<ParameterRecord>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool trainable() const noexcept { return gradient_ != nullptr; }
  /// Whole on every rank, which updates it by its own gradients.
  [[nodiscard]] bool ignored() const noexcept { return traits_.ignored; }

  // --- weights
  /// float32 master weights of `owned()`, where the optimizer updates; after a change call
  /// `publish`.
  [[nodiscard]] float* master();
  [[nodiscard]] Shard owned() const { return storage_->owned(); }
  /// Where the optimizer puts the weights rounded to the compute dtype, or null where that is
  /// float32.
  [[nodiscard]] void* rounded();
  void round_master();
  /// The full master weights, [padded_numel], in host memory on every rank (each its own where this
  /// is ignored). Collective.
  std::vector<float> gather_master();
  /// Says that master and rounded weights have changed: the next unshard sees them on every rank.
  void publish();
  /// Waits for every collective that still uses this flat parameter's memory.
  void settle();

  void begin_unshard();
  /// The full parameter in the view dtype, [padded_numel].
  const void* unshard();
  void reshard(NextUse next);

  /// Null where this is frozen.
  [[nodiscard]] FlatGradient* gradient() noexcept { return gradient_.get(); }
  [[nodiscard]] const FlatGradient* gradient() const noexcept { return gradient_.get(); }

  // --- figures
  [[nodiscard]] std::int64_t master_nbytes() const;
  [[nodiscard]] std::int64_t gathered_nbytes() const;

 private:
  [[nodiscard]] bool master_is_gathered() const noexcept;

  Engine& engine_;
  std::string unit_name_;
  std::vector<ParameterRecord> parameters_;
  FlatTraits traits_;
  FlatLayout layout_;
  std::unique_ptr<WeightStorage> storage_;
  device::MemoryPtr master_;   ///< null where what is gathered is the master
  device::MemoryPtr rounded_;  ///< null where the optimizer reaches the gathered weights
  bool unsharded_ = false;
  const void* view_ = nullptr;
  device::MemoryPtr widened_;
  std::unique_ptr<FlatGradient> gradient_;
};

}  // namespace acc::sharding
