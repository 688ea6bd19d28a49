// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_gradient.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/shard_layout.hpp"
#include "sharding/weight_storage.hpp"

#include <memory>
#include <string>
#include <vector>

namespace acc::sharding {

/// Parameters of a unit that are stored, gathered and reduced as one array (`plan_flats`; FSDP's
/// FlatParameter: arXiv 2304.11277, section 3.2.1).
///
/// The weights exist in up to four forms:
/// - master weights: the owned part, in the optimizer's dtype (`stored`) and memory;
/// - rounded weights: the owned part in the gathered dtype, in the optimizer's memory;
/// - the storage's own part (WeightStorage::own): what peers gather, in the gathered dtype;
/// - the full parameter while unsharded, and its widened copy if the view dtype is another.
/// Forms of the same dtype and memory share one copy. After an update `publish` brings the new
/// weights from the optimizer's side to the storage.
///
/// Unsharding: `begin_unshard` issues the gather, `unshard` waits for it and returns the view,
/// `reshard` frees it. All of them are collective and come in the same order on all ranks.
class FlatParameter {
 public:
  /// context, pools, counters: outlive this object.
  FlatParameter(const Context& context, Pools& pools, Counters& counters, std::string unit_name,
                std::vector<ParameterRecord> parameters, FlatTraits traits);

  [[nodiscard]] const std::string& unit_name() const noexcept { return unit_name_; }
  [[nodiscard]] const FlatLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<ParameterRecord>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] bool trainable() const noexcept { return gradient_ != nullptr; }
  /// True for a parameter of an ignored module: whole on every rank, and each rank updates it with
  /// its own gradients.
  [[nodiscard]] bool ignored() const noexcept { return traits_.ignored; }

  // --- weights
  /// Master weights of `owned()`: [owned().numel] of `stored()`, memory of the updater. Call
  /// `publish` after a change.
  [[nodiscard]] void* master();
  [[nodiscard]] DType stored() const noexcept { return stored_; }
  [[nodiscard]] Shard owned() const { return storage_->owned(); }
  /// Returns the arrays for optimizer step number `step` (from 1); the optimizer adds its moments.
  /// Contains the rounded weights if the gathered dtype differs from the master's.
  [[nodiscard]] device::UpdateArrays update_arrays(std::int64_t step);
  /// Sets the seed of stochastic rounding. The rounding of an element is a function of the seed,
  /// the step and the element's position, so it does not depend on ranks or devices.
  void seed_noise(std::uint64_t seed) noexcept { noise_seed_ = seed; }
  /// Rounds initial values in place to the dtype in which the program loads its model and, if the
  /// precision mode requires it (DeepSpeed), to the gathered dtype. values: [numel], host memory.
  void round_initial(float* values, std::size_t numel) const;
  /// Computes the rounded weights from the master weights.
  void round_master();
  /// Declares that master and rounded weights have changed; the next unshard on any rank uses them.
  /// Collective.
  void publish();
  /// Waits for every collective that still uses this flat parameter's memory.
  void settle();

  /// Starts the gather, once before each `reshard`.
  void begin_unshard();
  /// Returns the full parameter, [padded_numel] in the view dtype, valid until `reshard`.
  const void* unshard();
  /// True if `unshard` always returns the same memory, which holds nothing else.
  [[nodiscard]] bool keeps_address() const {
    return storage_->keeps_address() && layout_.precision.viewed == layout_.precision.gathered;
  }
  /// Ends the program's access after its last scope (only with ACC_CHECK). The weights stay
  /// gathered; `unshard` grants access again.
  void hide();
  void reshard(NextUse next);

  /// Says whether the program trains the parameter now, which may have been frozen so far. With
  /// `ModelOptions::by_rows`. Collective.
  void want_gradient(bool wanted);
  /// Null for a parameter that was frozen so far.
  [[nodiscard]] FlatGradient* gradient() noexcept { return gradient_.get(); }
  [[nodiscard]] const FlatGradient* gradient() const noexcept { return gradient_.get(); }

  /// As WeightStorage::renew, with its gradient. Collective.
  void renew();

  // --- memory report
  [[nodiscard]] std::int64_t master_nbytes() const;
  [[nodiscard]] std::int64_t gathered_nbytes() const;

 private:
  [[nodiscard]] bool is_mixed() const noexcept;
  [[nodiscard]] bool master_is_gathered() const noexcept;
  [[nodiscard]] void* rounded();
  void show(const void* memory, DType dtype);

  const Context& context_;
  Pools& pools_;
  Counters& counters_;
  std::string unit_name_;
  std::vector<ParameterRecord> parameters_;
  FlatTraits traits_;
  FlatLayout layout_;
  DType stored_;
  std::uint64_t noise_seed_ = 0;
  std::unique_ptr<WeightStorage> storage_;
  device::MemoryPtr master_;   ///< null if the storage's own part is the master
  device::MemoryPtr rounded_;  ///< null if the optimizer writes the storage's own part directly
  const std::byte* full_ = nullptr;  ///< gathered dtype; null until the gather is waited for
  const void* view_ = nullptr;       ///< memory that the program sees: `full_` or `widened_`
  bool shown_ = false;               ///< the program has access to `view_`
  ViewGuard::Contents contents_;
  device::MemoryPtr widened_;
  std::unique_ptr<FlatGradient> gradient_;
};

}  // namespace acc::sharding
