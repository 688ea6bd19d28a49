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
  int num_local = 1;         ///< of them on one machine: the hybrid strategies' shard group
  bool sixteen_bit = false;  ///< mixed precision
  int moments = 2;           ///< fp32 numbers that the optimizer keeps per parameter
  bool on_cpu = false;       ///< workers of one machine compute on the CPU
  bool overlaps = true;      ///< reductions run beside the backward (overlap_comm)
};

/// Bytes of one rank, without activations. The first three lie on the device or the host, as the
/// offload says.
struct RankMemory {
  std::int64_t parameters = 0;  ///< weights, and fp32 master weights where they are apart
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t gathered = 0;          ///< full weights of the units alive
  std::int64_t gradient_buffers = 0;  ///< full gradients on their way to a reduction
  std::int64_t device = 0;            ///< sum on the GPU; with `on_cpu` 0
  std::int64_t host = 0;

  bool operator==(const RankMemory&) const = default;
};

/// Weights of 2 (16 bits) or 4 bytes, gradients, moments and master weights of 4, divided as ZeRO
/// (arXiv 1910.02054, section 3) and docs/sharding.md say; padding is left out, it is less than 64
/// bytes a parameter and rank.
RankMemory rank_memory(const TrainingSize& size, plugins::Strategy strategy, Offload offload);

}  // namespace acc::launcher
