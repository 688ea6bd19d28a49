#include "commands/estimate_memory/memory_model.hpp"

#include "acc/plugins/strategy.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kHalf = 2;

/// What the runtime keeps alive beside the root unit's: gathered weights in use and on their way;
/// gradients being written and on their way; reduced shards of an offloaded optimizer.
constexpr std::int64_t kGathered = 2;
constexpr std::int64_t kGradients = 2;
constexpr std::int64_t kOffloaded = 3;

class Model {
 public:
  Model(const TrainingSize& size, plugins::Strategy strategy, Offload offload)
      : size_(size),
        on_(plugins::switches(strategy)),
        offload_(size.on_cpu ? Offload::none : offload),
        shards_(on_.replicate ? size.num_local : size.num_processes),
        width_(size.sixteen_bit || size.low_precision ? kHalf : kFloat),
        stored_(size.low_precision ? kHalf : kFloat) {}

  RankMemory memory() {
    add_parameters();
    add_gradients();
    place(memory_.optimizer, stored_ * size_.moments * optimizer_shard(), offloads());
    add_gathered();
    add_gradient_buffers();
    return memory_;
  }

 private:
  [[nodiscard]] bool offloads() const { return offload_ != Offload::none; }
  /// Weights are gathered in another dtype than they are stored in.
  [[nodiscard]] bool is_mixed() const { return width_ != stored_; }
  [[nodiscard]] bool widens() const { return size_.on_cpu && width_ == kHalf && size_.widens; }
  [[nodiscard]] std::int64_t optimizer_shard() const {
    return on_.shard_optimizer ? size_.numel / shards_ : size_.numel;
  }
  [[nodiscard]] std::int64_t parameter_shard() const {
    return on_.shard_parameters ? size_.persistent + (size_.numel - size_.persistent) / shards_
                                : size_.numel;
  }
  /// The root's may lie in a buffer that is large enough for any unit.
  [[nodiscard]] std::int64_t unit_or_root() const {
    return std::max(size_.largest_unit, size_.root);
  }
  /// Elements of the units alive at once, and the root's.
  [[nodiscard]] std::int64_t alive(std::int64_t units) const {
    return std::min(units * size_.largest_unit + size_.root, size_.numel);
  }

  /// The same where the root's come last, and so into one of the units' if they fit.
  [[nodiscard]] std::int64_t with_late_root(std::int64_t units) const {
    return size_.root <= size_.largest_unit ? std::min(units * size_.largest_unit, size_.numel)
                                            : alive(units);
  }

  void place(std::int64_t& part, std::int64_t nbytes, bool on_host) {
    part += nbytes;
    (on_host || size_.on_cpu ? memory_.host : memory_.device) += nbytes;
  }

  void add_parameters() {
    const bool weights_on_host = offload_ == Offload::all;
    const bool shared = size_.on_cpu && is_mixed();  // counted as gathered
    if (!shared) {
      place(memory_.parameters, width_ * parameter_shard(), weights_on_host);
    }
    // Weights of the optimizer's type and place are its master weights, too.
    if (is_mixed() || offloads() != weights_on_host) {
      place(memory_.parameters, stored_ * optimizer_shard(), offloads());
    }
    if (is_mixed() && offload_ == Offload::optimizer) {  // rounded there, then copied
      place(memory_.parameters, width_ * optimizer_shard(), true);
    }
  }

  void add_gradients() {
    if (!on_.shard_gradients) {
      place(memory_.gradients, kFloat * size_.numel, false);
    } else if (size_.no_sync && adds_apart() && !widens()) {  // else they are among the others
      place(memory_.gradients, kFloat * size_.numel, false);
    }
    if (on_.shard_gradients || offloads()) {
      place(memory_.gradients, kFloat * optimizer_shard(), offloads());
    }
  }

  void add_gathered() {
    if (size_.on_cpu && is_mixed()) {
      place(memory_.gathered, width_ * parameter_shard(), false);
    }
    if (widens()) {
      place(memory_.gathered, kFloat * widened(), false);
    } else if (size_.on_cpu && adds_apart()) {
      place(memory_.gathered, width_ * with_late_root(1), false);
    }
    // Where ranks share a machine's memory a shard is a slice of what is gathered.
    const bool gathers = !size_.on_cpu || size_.copies;
    if (!gathers || !on_.shard_parameters || shards_ == 1 || size_.persistent == size_.numel) {
      return;
    }
    place(memory_.gathered, width_ * gathered_elements(), false);
    if (offload_ == Offload::all) {  // a shard on its way from the host
      place(memory_.gathered, width_ * size_.largest_unit / shards_, false);
    }
  }

  [[nodiscard]] std::int64_t gathered_elements() const {
    const std::int64_t all = size_.numel - size_.root + unit_or_root();
    if (!on_.reshard_after_forward) {
      return all;
    }
    const std::int64_t units = size_.prefetches || !size_.on_cpu ? kGathered : 1;
    return std::min(all, std::max(size_.keeps, units * size_.largest_unit + unit_or_root()));
  }

  /// 16-bit weights and gradients of the units in use, in the fp32 that the CPU computes with.
  /// Gradients that are kept whole are in fp32 anyway.
  [[nodiscard]] std::int64_t widened() const {
    const bool frees = on_.reshard_after_forward && size_.keeps < size_.numel;
    const std::int64_t weights = frees ? std::max(alive(1), size_.keeps) : size_.numel;
    if (!on_.shard_gradients) {
      return weights;
    }
    if (size_.no_sync) {
      return weights + size_.numel;
    }
    // The root's gradient takes the place of weights that were freed.
    return weights + size_.largest_unit + (frees ? unit_or_root() : size_.root);
  }

  /// 16-bit gradients that are added to a sum in fp32, unit by unit.
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
    if (width_ == kHalf && !size_.on_cpu) {  // fp32 sums of a reduction
      place(memory_.gradient_buffers, kFloat * unit_or_root() / shards_, false);
    }
    if (offloads()) {  // reduced shards on their way to the host
      place(memory_.gradient_buffers, kFloat * alive(kOffloaded) / shards_, false);
    }
  }

  /// Of the buffers that reductions read.
  [[nodiscard]] std::int64_t reduced_elements() const {
    if (size_.no_sync && width_ == kFloat) {
      return size_.numel;  // all of them wait there
    }
    const std::int64_t units = size_.overlaps ? kGradients : 1;
    return size_.on_cpu && width_ == kHalf ? with_late_root(units) : alive(units);
  }

  const TrainingSize& size_;
  plugins::StrategySwitches on_;
  Offload offload_;
  std::int64_t shards_;
  std::int64_t width_;   ///< of what is gathered
  std::int64_t stored_;  ///< of weights and moments between steps
  RankMemory memory_;
};

}  // namespace

RankMemory rank_memory(const TrainingSize& size, plugins::Strategy strategy, Offload offload) {
  return Model(size, strategy, offload).memory();
}

namespace {

constexpr double kBufferFactor = 1.5;  // DeepSpeed's additional_buffer_factor

std::int64_t whole(double nbytes) {
  return static_cast<std::int64_t>(nbytes);
}

}  // namespace

DeepSpeedMemory deepspeed_zero2(const DeepSpeedSize& size, Offload offload) {
  const auto numel = static_cast<double>(size.numel);
  const int ranks = size.gpus_per_machine * size.num_machines;
  if (offload != Offload::none) {
    return {2 * size.numel, whole(numel * std::max(4 * ranks, 16) * kBufferFactor)};
  }
  return {2 * size.numel + whole(18.0 * numel / ranks),
          whole(numel * 4 * size.gpus_per_machine * kBufferFactor)};
}

DeepSpeedMemory deepspeed_zero3(const DeepSpeedSize& size, Offload offload) {
  const auto numel = static_cast<double>(size.numel);
  const int ranks = size.gpus_per_machine * size.num_machines;
  const double share = 1.0 / size.num_machines;
  const std::int64_t layer = 4 * size.largest_layer;
  switch (offload) {
    case Offload::none:
      return {layer + whole(18.0 * numel / ranks),
              whole(static_cast<double>(size.largest_layer) * 4 * size.gpus_per_machine *
                    kBufferFactor)};
    case Offload::optimizer:
      return {layer + whole(2.0 * numel / ranks), whole(numel * 16 * share * kBufferFactor)};
    case Offload::all: break;
  }
  return {layer, whole(numel * 18 * share * kBufferFactor)};
}

}  // namespace acc::launcher
