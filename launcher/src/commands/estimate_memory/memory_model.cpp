// SPDX-License-Identifier: Apache-2.0
// Memory of one rank as a sum of buffers, each of which is a number of elements times a number of
// bytes. The numbers of elements follow the order in which the runtime gathers, uses and frees
// units (docs/sharding.md); test/integration/memory_estimate_test.cpp compares them with the
// runtime.
#include "commands/estimate_memory/memory_model.hpp"

#include "acc/base/optimizer_sizes.hpp"
#include "acc/settings/strategy.hpp"

#include <algorithm>
#include <cmath>

namespace acc::launcher::commands {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kHalf = 2;

/// Adds up the memory of one rank for one strategy and offload.
class Model {
 public:
  Model(const TrainingSize& size, settings::Strategy strategy, Offload offload)
      : size_(size),
        on_(settings::switches(strategy)),
        counts_(settings::buffer_counts(size.prefetches || !size.on_cpu || weights_in_file(),
                                        size.overlaps)),
        offload_(size.on_cpu ? Offload::none : offload),
        shards_(on_.replicate ? size.num_local : size.num_processes),
        width_(size.sixteen_bit || size.low_precision ? kHalf : kFloat),
        stored_(size.low_precision ? kHalf : kFloat) {}

  RankMemory memory() {
    add_parameters();
    add_gradients();
    const std::int64_t sharers = on_.shard_optimizer ? shards_ : 1;
    if (size_.states_8bit) {  // never in a file
      place(memory_.optimizer, packed(moments()) / sharers, offloads());
    } else {
      place_state(memory_.optimizer, stored_ * moments() / sharers);
    }
    if (size_.wholes > 0) {
      add_matrices();
    }
    if (size_.nvme != Offload::none) {
      const settings::NvmeSettings usual;
      const std::int64_t buffer = std::int64_t{usual.queue_depth} * usual.block_size;
      place(memory_.nvme_buffers, usual.buffer_count * buffer, true);
    }
    add_gathered();
    add_gradient_buffers();
    if (size_.async_saves) {  // replicas write equal parts of what they share
      place(memory_.snapshot, saved() / size_.num_processes, true);
    }
    if (size_.memory_checkpoints) {
      add_memory_checkpoints();
    }
    return memory_;
  }

 private:
  /// Numbers that the optimizer keeps of all parameters.
  [[nodiscard]] std::int64_t moments() const {
    const std::int64_t all = size_.moments * size_.numel + size_.more_root_moments * size_.root;
    return size_.nvme == Offload::none ? all - size_.absent_moments * size_.matrices : all;
  }
  /// Bytes of weights and moments in a checkpoint.
  [[nodiscard]] std::int64_t saved() const {
    return stored_ * size_.numel + (size_.states_8bit ? kFloat : stored_) * moments() +
           kFloat * size_.owned;
  }
  /// Bytes of numbers in 8 bits.
  static std::int64_t packed(std::int64_t numel) { return numel + kFloat * numel / 256; }
  [[nodiscard]] bool offloads() const { return offload_ != Offload::none; }
  /// True if weights are gathered in another dtype than the one they are stored in.
  [[nodiscard]] bool is_mixed() const { return width_ != stored_; }
  /// True if the CPU converts 16-bit weights to fp32 before it computes.
  [[nodiscard]] bool widens() const { return size_.on_cpu && width_ == kHalf && size_.widens; }
  [[nodiscard]] std::int64_t optimizer_shard() const {
    return on_.shard_optimizer ? size_.numel / shards_ : size_.numel;
  }
  [[nodiscard]] std::int64_t parameter_shard() const {
    return on_.shard_parameters ? size_.persistent + (size_.numel - size_.persistent) / shards_
                                : size_.numel;
  }
  /// Elements of the root unit's buffer, which may be one that is large enough for any unit.
  [[nodiscard]] std::int64_t unit_or_root() const {
    return std::max(size_.largest_unit, size_.root);
  }
  /// Elements of `units` units and of the root unit.
  [[nodiscard]] std::int64_t alive(std::int64_t units) const {
    return std::min(units * size_.largest_unit + size_.root, size_.numel);
  }

  /// The same if the root unit's gradient is computed last. It then reuses a unit's buffer, if it
  /// fits.
  [[nodiscard]] std::int64_t with_late_root(std::int64_t units) const {
    return size_.root <= size_.largest_unit ? std::min(units * size_.largest_unit, size_.numel)
                                            : alive(units);
  }

  /// The states of the matrices that this rank owns, and the directions and updates of the units
  /// that are computed at a time (runtime/src/optim/matrix_update.hpp).
  void add_matrices() {
    place_state(memory_.optimizer, kFloat * size_.owned / size_.num_processes);
    const std::int64_t all = size_.wholes;
    const std::int64_t window =
        all <= kWindowNumel ? all : 2 * std::min(all, std::max(kWindowNumel, size_.largest_unit));
    const std::int64_t shards = on_.shard_optimizer ? shards_ : 1;
    const bool shares = size_.on_cpu && !size_.copies;  // the directions of all ranks, in place
    const bool replicas = size_.num_processes > shards;
    place(memory_.optimizer, kFloat * window / (shares ? shards : 1), false);
    if (replicas || (shards > 1 && !shares)) {
      place(memory_.optimizer, kFloat * window, false);
    }
    if (offloads()) {  // this rank's directions on the host
      place(memory_.optimizer, kFloat * window / shards, true);
    }
  }

  /// Adds bytes to a part, and to the memory of the host or of the device.
  void place(std::int64_t& part, std::int64_t nbytes, bool on_host) {
    part += nbytes;
    (on_host || size_.on_cpu ? memory_.host : memory_.device) += nbytes;
  }

  /// Two snapshots of the rank's own state, two of a rank of another machine unless replicas there
  /// have the same, and the page-locked memory through which a GPU's state is copied.
  void add_memory_checkpoints() {
    const std::int64_t one = saved() / (on_.shard_optimizer ? shards_ : 1);
    const bool has_replica = on_.replicate || !on_.shard_optimizer;
    const bool sends = size_.num_processes > size_.num_local && !has_replica;
    const bool stages = !size_.on_cpu && !offloads();
    place(memory_.snapshot, one * (2 + (sends ? 2 : 0) + (stages ? 1 : 0)), true);
  }

  /// The same for what may be in a file: master weights and moments.
  void place_state(std::int64_t& part, std::int64_t nbytes) {
    if (size_.nvme != Offload::none) {
      memory_.nvme += nbytes;
    } else {
      place(part, nbytes, offloads());
    }
  }
  /// True if the weights between uses are in a file.
  [[nodiscard]] bool weights_in_file() const {
    return size_.nvme == Offload::all && on_.shard_parameters;
  }

  /// True if reduced gradients are in a file.
  [[nodiscard]] bool gradients_in_file() const {
    return weights_in_file() && on_.shard_gradients && !on_.replicate;
  }

  void add_parameters() {
    const bool weights_on_host = offload_ == Offload::all;
    const bool shared = size_.on_cpu && is_mixed();  // counted in add_gathered
    if (weights_in_file()) {
      memory_.nvme += width_ * parameter_shard();
    } else if (!shared) {
      place(memory_.parameters, width_ * parameter_shard(), weights_on_host);
    }
    // Weights in the optimizer's dtype and memory are its master weights at the same time.
    if (is_mixed() || offloads() != weights_on_host) {
      place_state(memory_.parameters, stored_ * optimizer_shard());
    }
    if (is_mixed() && offload_ == Offload::optimizer) {  // rounded on the host, then copied
      place(memory_.parameters, width_ * optimizer_shard(), true);
    }
  }

  void add_gradients() {
    // Those of no_sync may be counted in other buffers.
    if (!on_.shard_gradients || (size_.no_sync && adds_apart() && !widens())) {
      place(memory_.gradients, kFloat * size_.numel, false);
    }
    if (gradients_in_file()) {
      memory_.nvme += kFloat * optimizer_shard();
    } else if (on_.shard_gradients || offloads()) {
      place(memory_.gradients, kFloat * optimizer_shard(), offloads());
    }
  }

  void add_gathered() {
    if (size_.on_cpu && is_mixed() && !weights_in_file()) {
      place(memory_.gathered, width_ * parameter_shard(), false);
    }
    if (widens()) {
      place(memory_.gathered, kFloat * widened(), false);
    } else if (size_.on_cpu && adds_apart()) {
      place(memory_.gathered, width_ * with_late_root(1), false);
    }
    // If ranks share memory (one machine, CPU), a shard is a slice of the gathered weights.
    const bool gathers = !size_.on_cpu || size_.copies || weights_in_file();
    const bool whole = shards_ == 1 && !weights_in_file();
    if (!gathers || !on_.shard_parameters || whole || size_.persistent == size_.numel) {
      return;
    }
    // Each rank counts its part of a buffer that they share.
    const std::int64_t sharers = size_.on_cpu && !size_.copies ? size_.num_local : 1;
    place(memory_.gathered, width_ * gathered_elements() / sharers, false);
    if (offload_ == Offload::all) {  // a shard that is being copied from the host
      place(memory_.gathered, width_ * size_.largest_unit / shards_, false);
    }
    if (weights_in_file()) {  // shards that are being read
      place(memory_.gathered, width_ * alive(1) / shards_, false);
    }
  }

  /// Elements of gathered weights that exist at the same time.
  [[nodiscard]] std::int64_t gathered_elements() const {
    const std::int64_t all = size_.numel - size_.root + unit_or_root();
    if (!on_.reshard_after_forward) {
      return all;
    }
    return std::min(all,
                    std::max(size_.keeps, counts_.gathered * size_.largest_unit + unit_or_root()));
  }

  /// Elements of 16-bit weights and gradients that are converted to fp32 for the CPU. Unsharded
  /// gradients are in fp32 already.
  [[nodiscard]] std::int64_t widened() const {
    const bool frees = on_.reshard_after_forward && size_.keeps < size_.numel;
    const std::int64_t weights = frees ? std::max(alive(1), size_.keeps) : size_.numel;
    if (!on_.shard_gradients) {
      return weights;
    }
    if (size_.no_sync) {
      return weights + size_.numel;
    }
    // The root unit's gradient reuses the memory of weights that were freed.
    return weights + size_.largest_unit + (frees ? unit_or_root() : size_.root);
  }

  /// True if 16-bit gradients are added to a separate fp32 sum, unit by unit.
  [[nodiscard]] bool adds_apart() const {
    return width_ == kHalf && (!on_.shard_gradients || size_.no_sync);
  }

  void add_gradient_buffers() {
    if (!size_.on_cpu && adds_apart()) {
      place(memory_.gradient_buffers, width_ * alive(1), false);
    }
    if (!on_.shard_gradients) {
      return;
    }
    place(memory_.gradient_buffers, width_ * reduced_elements(), false);
    if (width_ == kHalf && !size_.on_cpu) {  // result of a reduction in fp32
      place(memory_.gradient_buffers, kFloat * unit_or_root() / shards_, false);
    }
    // Reduced shards that are being copied to the host or written to a file.
    if (offloads() || gradients_in_file()) {
      place(memory_.gradient_buffers, kFloat * alive_gradients(counts_.offloaded) / shards_, false);
    }
  }

  [[nodiscard]] std::int64_t alive_gradients(std::int64_t units) const {
    return size_.on_cpu && width_ == kHalf ? with_late_root(units) : alive(units);
  }

  /// Elements of the buffers that are inputs of reductions.
  [[nodiscard]] std::int64_t reduced_elements() const {
    if (size_.no_sync && width_ == kFloat) {
      return size_.numel;  // gradients are accumulated in these buffers
    }
    return alive_gradients(counts_.gradients);
  }

  const TrainingSize& size_;
  settings::StrategySwitches on_;
  settings::BufferCounts counts_;
  Offload offload_;
  std::int64_t shards_;  ///< number of ranks in a shard group
  std::int64_t width_;   ///< bytes per element of gathered weights
  std::int64_t stored_;  ///< bytes per element of stored weights and moments
  RankMemory memory_;
};

}  // namespace

RankMemory rank_memory(const TrainingSize& size, settings::Strategy strategy, Offload offload) {
  return Model(size, strategy, offload).memory();
}

namespace {

constexpr double kBufferFactor = 1.5;  // DeepSpeed's additional_buffer_factor

// The formulas below are those of deepspeed/runtime/zero/stage_1_and_2.py and stage3.py.
std::int64_t whole(double nbytes) {
  return static_cast<std::int64_t>(nbytes);
}

}  // namespace

DeepSpeedMemory deepspeed_zero2(const DeepSpeedSize& size, Offload offload) {
  const auto numel = static_cast<double>(size.numel);
  const int ranks = size.gpus_per_machine * size.num_machines;
  if (offload != Offload::none) {
    return {2 * size.numel, std::trunc(numel * std::max(4 * ranks, 16) * kBufferFactor)};
  }
  return {2 * size.numel + whole(18.0 * numel / ranks),
          std::trunc(numel * 4 * size.gpus_per_machine * kBufferFactor)};
}

DeepSpeedMemory deepspeed_zero3(const DeepSpeedSize& size, Offload offload) {
  const auto numel = static_cast<double>(size.numel);
  const int ranks = size.gpus_per_machine * size.num_machines;
  const double share = 1.0 / size.num_machines;
  const std::int64_t layer = 4 * size.largest_layer;
  switch (offload) {
    case Offload::none:
      return {layer + whole(18.0 * numel / ranks),
              std::trunc(static_cast<double>(size.largest_layer) * 4 * size.gpus_per_machine *
                         kBufferFactor)};
    case Offload::optimizer:
      return {layer + whole(2.0 * numel / ranks), std::trunc(numel * 16 * share * kBufferFactor)};
    case Offload::all: break;
  }
  return {layer, std::trunc(numel * 18 * share * kBufferFactor)};
}

}  // namespace acc::launcher::commands
