#pragma once

#include <cstdint>

namespace acc {

/// Outcome of one optimizer step. `grad_norm` is the global L2 norm before any clipping,
/// `clip_coefficient` what clipping to a norm multiplied by.
struct StepInfo {
  std::int64_t step = 0;
  double grad_norm = 0.0;
  double clip_coefficient = 1.0;
  double lr = 0.0;          ///< with which it was made (of the parameters outside all groups)
  double loss_scale = 1.0;  ///< by which its gradients had been multiplied
  bool skipped = false;     ///< a gradient was not finite: nothing was updated, `step` stands
  std::int64_t skipped_steps = 0;  ///< in all, this one included
  std::int64_t tiles = 0;  ///< in how many pieces the shards were updated (`sub_group_size`)
};

/// Bytes that this rank holds for the model between steps, and the most it gathered at once.
struct MemoryReport {
  std::int64_t parameter_bytes = 0;  ///< master weights: the shard, or all where nothing is sharded
  std::int64_t gradient_bytes = 0;   ///< reduced or accumulated gradients kept until the step, and
                                     ///< whole ones that no_sync has not reduced yet (in fp32
                                     ///< these lie in what gradient_buffer_bytes counts as well)
  std::int64_t optimizer_bytes = 0;  ///< moments
  std::int64_t gathered_bytes = 0;   ///< peak of gathered weights beyond `parameter_bytes`; memory
                                     ///< that all ranks of a host share counts 1/ranks on each
  std::int64_t gradient_buffer_bytes = 0;  ///< peak of full gradients on their way to a reduction
  std::int64_t device_bytes = 0;           ///< what the runtime holds of the GPU's memory now …
  std::int64_t device_peak_bytes = 0;      ///< … and the most it held; 0 on the CPU
  std::int64_t pinned_bytes = 0;           ///< page-locked host memory beside it
  std::int64_t buffer_bytes = 0;           ///< of Unit::buffer, whole on each rank
};

/// Elements handed to collectives, per rank: for an all_gather the gathered result, for a
/// reduce_scatter its input, for an all_reduce the buffer. `moved` counts only what was copied:
/// where the ranks of one host share the gathered memory a gather moves nothing.
struct TrafficReport {
  std::int64_t gathered_elements = 0;
  std::int64_t gathered_elements_moved = 0;
  /// Of `gathered_elements`, what came from a secondary copy (hpZ, or reshard_after_forward as a
  /// size) and so went over its few ranks only.
  std::int64_t secondary_elements = 0;
  std::int64_t gather_calls = 0;
  std::int64_t reduced_elements = 0;  ///< reduce_scatter
  std::int64_t reduce_calls = 0;
  std::int64_t all_reduced_elements = 0;  ///< all_reduce (no_shard; between replicas)
  std::int64_t all_reduce_calls = 0;
};

}  // namespace acc
