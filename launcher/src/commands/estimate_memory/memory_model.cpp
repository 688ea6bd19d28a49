#include "commands/estimate_memory/memory_model.hpp"

#include "acc/plugins/strategy.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

constexpr std::int64_t kFloat = 4;

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
        width_(size.sixteen_bit ? 2 : 4) {}

  RankMemory memory() {
    add_parameters();
    add_gradients();
    place(memory_.optimizer, kFloat * size_.moments * optimizer_shard(), offloads());
    add_gathered();
    add_gradient_buffers();
    return memory_;
  }

 private:
  [[nodiscard]] bool offloads() const { return offload_ != Offload::none; }
  [[nodiscard]] std::int64_t optimizer_shard() const {
    return on_.shard_optimizer ? size_.numel / shards_ : size_.numel;
  }
  [[nodiscard]] std::int64_t parameter_shard() const {
    return on_.shard_parameters ? size_.numel / shards_ : size_.numel;
  }
  /// Elements of the units alive at once, and the root's.
  [[nodiscard]] std::int64_t alive(std::int64_t units) const {
    return std::min(units * size_.largest_unit + size_.root, size_.numel);
  }

  void place(std::int64_t& part, std::int64_t nbytes, bool on_host) {
    part += nbytes;
    (on_host || size_.on_cpu ? memory_.host : memory_.device) += nbytes;
  }

  void add_parameters() {
    const bool weights_on_host = offload_ == Offload::all;
    const bool shared = size_.on_cpu && size_.sixteen_bit;  // counted as gathered
    if (!shared) {
      place(memory_.parameters, width_ * parameter_shard(), weights_on_host);
    }
    // Weights of the optimizer's type and place are its master weights, too.
    if (size_.sixteen_bit || offloads() != weights_on_host) {
      place(memory_.parameters, kFloat * optimizer_shard(), offloads());
    }
    if (size_.sixteen_bit && offload_ == Offload::optimizer) {  // rounded there, then copied
      place(memory_.parameters, width_ * optimizer_shard(), true);
    }
  }

  void add_gradients() {
    if (!on_.shard_gradients) {
      place(memory_.gradients, kFloat * size_.numel, false);
    }
    if (on_.shard_gradients || offloads()) {
      place(memory_.gradients, kFloat * optimizer_shard(), offloads());
    }
  }

  void add_gathered() {
    if (size_.on_cpu) {  // a shard is a slice of what all ranks of the machine share
      if (size_.sixteen_bit) {
        place(memory_.gathered, width_ * parameter_shard() + kFloat * widened(), false);
      }
      return;
    }
    if (!on_.shard_parameters || shards_ == 1) {
      return;
    }
    // The root's lie in a buffer that is large enough for any unit.
    const std::int64_t units =
        on_.reshard_after_forward ? kGathered * size_.largest_unit : size_.numel - size_.root;
    place(memory_.gathered, width_ * (units + std::max(size_.largest_unit, size_.root)), false);
    if (offload_ == Offload::all) {  // a shard on its way from the host
      place(memory_.gathered, width_ * size_.largest_unit / shards_, false);
    }
  }

  /// 16-bit weights and gradients of the units in use, in the fp32 that the CPU computes with. The
  /// root's may come to lie in a unit's buffer.
  [[nodiscard]] std::int64_t widened() const {
    const std::int64_t weights = on_.reshard_after_forward ? alive(1) : size_.numel;
    return weights + size_.largest_unit + std::max(size_.largest_unit, size_.root) +
           (on_.reshard_after_forward ? 0 : size_.root);
  }

  void add_gradient_buffers() {
    if (on_.shard_gradients) {
      const std::int64_t reduced = size_.overlaps ? kGradients : 1;
      place(memory_.gradient_buffers, width_ * alive(reduced), false);
      if (size_.sixteen_bit && !size_.on_cpu) {  // fp32 sums of a reduction
        place(memory_.gradient_buffers, kFloat * std::max(size_.largest_unit, size_.root) / shards_,
              false);
      }
      if (offloads()) {  // reduced shards on their way to the host
        place(memory_.gradient_buffers, kFloat * alive(kOffloaded) / shards_, false);
      }
    } else if (size_.sixteen_bit && !size_.on_cpu) {  // added to the fp32 ones unit by unit
      place(memory_.gradient_buffers, width_ * alive(kGradients), false);
    }
  }

  const TrainingSize& size_;
  plugins::StrategySwitches on_;
  Offload offload_;
  std::int64_t shards_;
  std::int64_t width_;
  RankMemory memory_;
};

}  // namespace

RankMemory rank_memory(const TrainingSize& size, plugins::Strategy strategy, Offload offload) {
  return Model(size, strategy, offload).memory();
}

}  // namespace acc::launcher
