// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace acc {

/// Result of one optimizer step; the same on every rank, except `tiles`.
struct StepInfo {
  std::int64_t step = 0;          ///< number of steps made so far, without skipped ones
  double grad_norm = 0.0;         ///< global L2 norm of the mean gradient, before clipping
  double clip_coefficient = 1.0;  ///< factor of clipping to a norm; 1: not clipped
  double lr = 0.0;          ///< learning rate of this step, of the parameters outside all groups
  double loss_scale = 1.0;  ///< factor by which the gradients had been multiplied
  bool skipped = false;     ///< true: a gradient was not finite; no update, `step` is unchanged
  std::int64_t skipped_steps = 0;  ///< number of skipped steps so far, including this one
  std::int64_t tiles = 0;  ///< number of pieces in which shards were updated (`sub_group_size`)
};

/// Bytes of memory that this rank holds for a model between steps, and the peak of gathered weights
/// and of gradient buffers. docs/sharding.md gives the formula for each strategy.
struct MemoryReport {
  std::int64_t parameter_bytes = 0;  ///< master weights: this rank's shards, or all if not sharded
  std::int64_t gradient_bytes = 0;   ///< reduced or accumulated gradients kept until the step, and
                                     ///< whole gradients that no_sync has not reduced yet (if the
                                     ///< program writes fp32 they also count as gradient buffers)
  std::int64_t optimizer_bytes = 0;  ///< moments
  std::int64_t gathered_bytes = 0;   ///< peak of gathered weights beyond `parameter_bytes`; memory
                                     ///< shared by the ranks of a host counts 1/ranks on each
  std::int64_t gradient_buffer_bytes = 0;  ///< peak of whole gradients that await a reduction
  std::int64_t device_bytes = 0;           ///< GPU memory that the runtime holds now, and what
                                           ///< `Runtime::account_memory` has added; 0 on the CPU
  std::int64_t device_peak_bytes = 0;      ///< peak of device_bytes; 0 on the CPU
  std::int64_t pinned_bytes = 0;           ///< page-locked host memory; 0 on the CPU
  std::int64_t buffer_bytes = 0;           ///< buffers (Unit::buffer), whole on each rank
  std::int64_t snapshot_bytes = 0;         ///< host memory of Runtime::save_async, and, also the
                                           ///< launcher's, of memory_checkpoint_every
  std::int64_t nvme_bytes =
      0;  ///< offload to NVMe: weights and moments in files, not counted above
  std::int64_t nvme_buffer_bytes = 0;  ///< memory of the buffers of these files
};

/// Elements that this rank passed to collectives, without padding: for an all_gather its result,
/// for a reduce_scatter its input, for an all_reduce the buffer. docs/sharding.md gives the count
/// per step for each strategy. With Muon also the directions and results of matrices.
struct TrafficReport {
  std::int64_t gathered_elements = 0;  ///< all_gather
  /// The part of `gathered_elements` that was copied. A gather copies nothing if the ranks of one
  /// host share the gathered memory.
  std::int64_t gathered_elements_moved = 0;
  /// The part of `gathered_elements` that came from a secondary copy (hpZ, or reshard_after_forward
  /// as a size), and so was gathered over fewer ranks.
  std::int64_t secondary_elements = 0;
  std::int64_t gather_calls = 0;
  std::int64_t reduced_elements = 0;  ///< reduce_scatter
  std::int64_t reduce_calls = 0;
  std::int64_t all_reduced_elements = 0;  ///< all_reduce (no_shard; between replicas)
  std::int64_t all_reduce_calls = 0;
  /// Bytes that this rank has sent to other machines over host memory, in all_gathers and in
  /// reductions of all groups of the runtime.
  std::int64_t gathered_bytes_sent = 0;
  std::int64_t reduced_bytes_sent = 0;
};

}  // namespace acc
