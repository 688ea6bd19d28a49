// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <cstdint>

namespace acc::launcher::commands {

/// State that is kept in host memory when training on a GPU: nothing; master weights, gradients and
/// moments (ZeRO's offload_optimizer); or these and the weights (offload_param too, or FSDP's
/// offload_params).
enum class Offload { none, optimizer, all };

/// Properties of a training run that determine its memory. Sizes are numbers of elements.
struct TrainingSize {
  std::int64_t numel = 0;
  std::int64_t largest_unit = 0;  ///< largest group of parameters gathered and freed together
  std::int64_t root = 0;          ///< the other parameters: gathered from forward to backward
  int num_processes = 1;
  int num_local = 1;           ///< ranks per machine; the shard group of hybrid strategies
  bool sixteen_bit = false;    ///< mixed precision
  bool low_precision = false;  ///< weights loaded and trained in 16 bits, without mixed precision
  int moments = 2;             ///< numbers that the optimizer keeps per parameter
  int more_root_moments = 0;   ///< added to them for the parameters of the root
  int absent_moments = 0;     ///< of the units' matrices: those of `moments` that they do not have;
                              ///< arrays in files have room for them
  std::int64_t matrices = 0;  ///< elements of the units' matrices
  std::int64_t owned = 0;     ///< numbers that all ranks keep of the matrices that they own
  std::int64_t wholes = 0;    ///< elements of the units whose matrices are updated as wholes
  bool states_8bit = false;   ///< these numbers have 8 bits, in blocks of 256 with a scale
  bool on_cpu = false;        ///< all workers are on one machine and compute on the CPU
  bool widens = false;        ///< on the CPU: 16-bit weights are converted to fp32 to compute
  bool copies = false;        ///< on the CPU: each rank has its own copy (ACC_SHM_GATHER=copy)
  bool prefetches = false;    ///< gathers a unit while another one is in use; on a GPU always
  bool overlaps = true;       ///< reductions run during the backward pass (overlap_comm)
  bool no_sync = false;       ///< accumulates gradients of micro-steps without reducing them
  bool async_saves = false;   ///< checkpoints are written beside the training
  bool memory_checkpoints = false;  ///< memory_checkpoint_every
  Offload nvme = Offload::none;  ///< on the CPU: moments (not those in 8 bits) and separate master
                                 ///< weights, or also the weights, are in files
  /// Elements of parameters that are never freed (stage3_param_persistence_threshold).
  std::int64_t persistent = 0;
  /// Elements that stay gathered until their next use: the smaller one of
  /// stage3_max_reuse_distance and stage3_max_live_parameters.
  std::int64_t keeps = 0;
};

/// Memory of one rank in bytes, without activations. The first three parts are in device or in host
/// memory, depending on the offload.
struct RankMemory {
  std::int64_t parameters = 0;  ///< weights, and fp32 master weights if they are separate
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t gathered = 0;          ///< full weights of the gathered units; on the CPU also
                                      ///< their fp32 copies and gradients to be accumulated
  std::int64_t gradient_buffers = 0;  ///< full gradients that are inputs of reductions
  std::int64_t snapshot = 0;          ///< in host memory: copies of the rank's state, for saves
                                      ///< beside the training and to resume from
  std::int64_t nvme = 0;              ///< in files, which is part of no other number
  std::int64_t nvme_buffers = 0;      ///< of these files, with the default settings
  std::int64_t device = 0;            ///< sum in GPU memory; 0 with `on_cpu`
  std::int64_t host = 0;              ///< sum in host memory

  bool operator==(const RankMemory&) const = default;
};

/// Returns the memory of one rank of the acclaunch runtime. Weights have 2 (16 bits) or 4 bytes per
/// element; gradients, moments and master weights have 4 (moments 2 in low precision). They are
/// sharded as in ZeRO (arXiv 1910.02054, section 3) and docs/sharding.md. Padding is not included;
/// it is less than 64 bytes per parameter and rank. The buffers are those of a program such as
/// train_gpt, in which the root unit's gradient is computed first on a GPU and, in 16 bits, last on
/// the CPU.
RankMemory rank_memory(const TrainingSize& size, settings::Strategy strategy, Offload offload);

/// Bytes in DeepSpeed's own estimate: per GPU, and host memory per machine.
struct DeepSpeedMemory {
  std::int64_t device = 0;
  double host = 0.0;  ///< may be more than an int64 holds

  bool operator==(const DeepSpeedMemory&) const = default;
};

struct DeepSpeedSize {
  std::int64_t numel = 0;
  std::int64_t largest_layer = 0;  ///< elements
  int gpus_per_machine = 1;
  int num_machines = 1;
};

/// Same result as estimate_zero2_model_states_mem_needs of DeepSpeed 0.19.8 with its defaults:
/// mixed precision, Adam, a buffer factor of 1.5. `all` has the same effect as `optimizer`, since
/// stage 2 does not offload weights.
DeepSpeedMemory deepspeed_zero2(const DeepSpeedSize& size, Offload offload);

/// Same result as estimate_zero3_model_states_mem_needs of DeepSpeed 0.19.8 with its defaults, and
/// with zero.Init.
DeepSpeedMemory deepspeed_zero3(const DeepSpeedSize& size, Offload offload);

}  // namespace acc::launcher::commands
