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
  /// Master weights of `owned()`, in `stored()`, where the optimizer updates; after a change call
  /// `publish`.
  [[nodiscard]] void* master();
  [[nodiscard]] DType stored() const noexcept { return stored_; }
  [[nodiscard]] Shard owned() const { return storage_->owned(); }
  /// What an optimizer's step number `step` (from 1) finds; its moments are for the optimizer to
  /// fill in. The weights rounded to the compute dtype are among it where that is another.
  [[nodiscard]] device::UpdateArrays update_arrays(std::int64_t step);
  /// What is rounded by chance is a function of `seed`, the step and the place of an element.
  void seed_noise(std::uint64_t seed) noexcept { noise_seed_ = seed; }
  /// Rounds what weights are to begin with, in host memory, to the dtype in which the program loads
  /// them and, where the mode says so, to that in which they are gathered.
  void round_initial(float* values, std::size_t numel) const;
  void round_master();
  /// The full master weights, [padded_numel] float32, in host memory on every rank (each its own
  /// where this is ignored). Collective.
  std::vector<float> gather_master();
  /// Says that master and rounded weights have changed: the next unshard sees them on every rank.
  void publish();
  /// Waits for every collective that still uses this flat parameter's memory.
  void settle();

  void begin_unshard();
  /// The full parameter in the view dtype, [padded_numel].
  const void* unshard();
  /// No scope is open: takes the view from the program where accesses are checked. The weights
  /// stay; `unshard` gives the view back.
  void hide();
  void reshard(NextUse next);

  /// Null where this is frozen.
  [[nodiscard]] FlatGradient* gradient() noexcept { return gradient_.get(); }
  [[nodiscard]] const FlatGradient* gradient() const noexcept { return gradient_.get(); }

  // --- figures
  [[nodiscard]] std::int64_t master_nbytes() const;
  [[nodiscard]] std::int64_t gathered_nbytes() const;

 private:
  [[nodiscard]] bool is_mixed() const noexcept;
  [[nodiscard]] bool master_is_gathered() const noexcept;
  [[nodiscard]] void* rounded();
  void show(const void* memory, DType dtype);

  Engine& engine_;
  std::string unit_name_;
  std::vector<ParameterRecord> parameters_;
  FlatTraits traits_;
  FlatLayout layout_;
  DType stored_;
  std::uint64_t noise_seed_ = 0;
  std::unique_ptr<WeightStorage> storage_;
  device::MemoryPtr master_;   ///< null where what is gathered is the master
  device::MemoryPtr rounded_;  ///< null where the optimizer reaches the gathered weights
  bool unsharded_ = false;
  const std::byte* full_ = nullptr;  ///< as gathered; null while sharded
  const void* view_ = nullptr;       ///< as the program sees it: `full_` or `widened_`
  bool shown_ = false;
  ViewGuard::Contents contents_;
  device::MemoryPtr widened_;
  std::unique_ptr<FlatGradient> gradient_;
};

}  // namespace acc::sharding
