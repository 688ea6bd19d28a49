#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <cstdint>

namespace acc::launcher {

/// What is kept in host memory beside a GPU: nothing; master weights, gradients and moments (ZeRO's
/// offload_optimizer); these and the weights (offload_param too, FSDP's offload_params).
enum class Offload { none, optimizer, all };

/// What a training is, as far as its memory goes. Counts are elements.
struct TrainingSize {
  std::int64_t numel = 0;
  std::int64_t largest_unit = 0;  ///< of what is gathered and freed together
  std::int64_t root = 0;          ///< in no unit: gathered from its forward to its backward
  int num_processes = 1;
  int num_local = 1;           ///< of them on one machine: the hybrid strategies' shard group
  bool sixteen_bit = false;    ///< mixed precision
  bool low_precision = false;  ///< weights loaded and trained in 16 bits, without mixed precision
  int moments = 2;             ///< numbers that the optimizer keeps per parameter
  bool on_cpu = false;         ///< workers of one machine compute on the CPU
  bool widens = false;         ///< … of 16-bit weights, in fp32
  bool copies = false;         ///< … and do not share what they gather (ACC_SHM_GATHER=copy)
  bool prefetches = false;     ///< a unit is gathered while another is used; on a GPU always
  bool overlaps = true;        ///< reductions run beside the backward (overlap_comm)
  bool no_sync = false;        ///< micro-steps whose gradients are not reduced
  /// Elements of parameters that are never freed (stage3_param_persistence_threshold).
  std::int64_t persistent = 0;
  /// Elements that stay gathered for their next use (stage3_max_reuse_distance and
  /// stage3_max_live_parameters, whichever is less).
  std::int64_t keeps = 0;
};

/// Bytes of one rank, without activations. The first three lie on the device or the host, as the
/// offload says.
struct RankMemory {
  std::int64_t parameters = 0;  ///< weights, and fp32 master weights where they are apart
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t gathered = 0;          ///< full weights of the units alive; on the CPU what is
                                      ///< widened or waits to be added to a sum, too
  std::int64_t gradient_buffers = 0;  ///< full gradients on their way to a reduction
  std::int64_t device = 0;            ///< sum on the GPU; with `on_cpu` 0
  std::int64_t host = 0;

  bool operator==(const RankMemory&) const = default;
};

/// Weights of 2 (16 bits) or 4 bytes, gradients, moments and master weights of 4 (moments of 2 in
/// low precision), divided as ZeRO (arXiv 1910.02054, section 3) and docs/sharding.md say; padding
/// is left out, it is less than 64 bytes a parameter and rank. Buffers are those of a program that
/// begins its root unit's gradient first on a GPU and, in 16 bits, last on the CPU, as train_gpt.
RankMemory rank_memory(const TrainingSize& size, plugins::Strategy strategy, Offload offload);

/// Bytes by DeepSpeed's own estimate: of a GPU, and of a machine's host memory.
struct DeepSpeedMemory {
  std::int64_t device = 0;
  std::int64_t host = 0;

  bool operator==(const DeepSpeedMemory&) const = default;
};

struct DeepSpeedSize {
  std::int64_t numel = 0;
  std::int64_t largest_layer = 0;  ///< elements
  int gpus_per_machine = 1;
  int num_machines = 1;
};

/// estimate_zero2_model_states_mem_needs of DeepSpeed 0.19.8, with its defaults: mixed precision,
/// Adam, a buffer factor of 1.5. `all` counts as `optimizer`: stage 2 does not offload weights.
DeepSpeedMemory deepspeed_zero2(const DeepSpeedSize& size, Offload offload);

/// estimate_zero3_model_states_mem_needs of DeepSpeed 0.19.8, likewise, with zero.Init.
DeepSpeedMemory deepspeed_zero3(const DeepSpeedSize& size, Offload offload);

}  // namespace acc::launcher
