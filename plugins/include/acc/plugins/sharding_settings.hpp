#pragma once

#include "acc/base/export.hpp"
#include "acc/plugins/training_settings.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::plugins {

/// What is sharded, over which ranks. FSDP's five names and ZeRO 0-3 are these six (`strategy.hpp`
/// maps each to its switches): NO_SHARD = ZeRO 0, shard_optimizer = ZeRO 1, SHARD_GRAD_OP = ZeRO 2,
/// FULL_SHARD = ZeRO 3.
enum class Strategy {
  no_shard,
  shard_optimizer,
  shard_grad_op,
  full_shard,
  hybrid_shard,
  hybrid_shard_zero2,
};

enum class MixedPrecision { no, fp16, bf16, fp8 };
enum class StateDictType { full, local, sharded };
enum class BackwardPrefetch { none, backward_pre, backward_post };
enum class WrapPolicy { unset, transformer_based, size_based, no_wrap };
enum class OffloadDevice { none, cpu, nvme };
enum class Device { cpu, cuda };
/// Who moves a GPU's memory between ranks: NCCL, or the host backends with copies through
/// page-locked memory; `automatic` takes NCCL wherever it can connect all ranks of the job.
enum class DeviceCollectives { automatic, nccl, staged };

ACC_API std::string_view to_string(Strategy value) noexcept;
ACC_API std::string_view to_string(MixedPrecision value) noexcept;
ACC_API std::string_view to_string(StateDictType value) noexcept;
ACC_API std::string_view to_string(BackwardPrefetch value) noexcept;
ACC_API std::string_view to_string(WrapPolicy value) noexcept;
ACC_API std::string_view to_string(OffloadDevice value) noexcept;
ACC_API std::string_view to_string(Device value) noexcept;
ACC_API std::string_view to_string(DeviceCollectives value) noexcept;

/// The neutral settings that FSDP and DeepSpeed configurations both translate to, and all that the
/// runtime knows of either. Counts are elements, not bytes, unless the name says so.
struct ShardingSettings {
  static constexpr std::int64_t kUnbounded = INT64_MAX;

  Strategy strategy = Strategy::no_shard;
  /// Ranks of one shard group for the hybrid strategies; 0: the local world size.
  int shard_size = 0;
  /// hpZ: ranks that share a secondary weight copy; 1: none (DeepSpeed zero_hpz_partition_size).
  int hpz_partition_size = 1;
  /// FSDP 2 integer reshard: size of the group that weights are resharded to; 0: the shard group.
  int reshard_size = 0;

  MixedPrecision mixed_precision = MixedPrecision::no;
  /// In which gradients travel (`no`: fp32); absent: the mixed precision's.
  std::optional<MixedPrecision> reduce_precision;
  bool stochastic_rounding = false;  ///< of weights that are kept in 16 bits
  /// DeepSpeed: master weights begin as the 16-bit copy rounds what was loaded.
  bool round_initial_weights = false;
  LossScaling loss_scaling;
  NanPolicy nan_policy = NanPolicy::ignore;
  OffloadDevice offload_param = OffloadDevice::none;
  OffloadDevice offload_optimizer = OffloadDevice::none;
  std::string offload_param_nvme_path;
  std::string offload_optimizer_nvme_path;

  BackwardPrefetch backward_prefetch = BackwardPrefetch::none;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;

  WrapPolicy wrap_policy = WrapPolicy::unset;
  std::vector<std::string> transformer_layer_classes;
  std::int64_t min_num_params = 100'000'000;
  bool use_orig_params = true;
  bool sync_module_states = true;
  bool cpu_ram_efficient_loading = true;
  bool zero3_init = true;  ///< parameters are made sharded; false: whole on each rank, then cut
  bool activation_checkpointing = false;
  bool activation_checkpointing_offload = false;
  std::string ignored_modules;

  StateDictType state_dict_type = StateDictType::sharded;
  bool save_16bit_model = false;

  // DeepSpeed's counts of elements; the defaults are what FSDP does.
  std::int64_t reduce_bucket_size = 0;     ///< most elements reduced at once; 0: a unit's
  std::int64_t allgather_bucket_size = 0;  ///< most gathered at once after a step; 0: a unit's
  std::int64_t prefetch_bucket_size = 0;   ///< gathered ahead; 0: one unit, as the prefetches say
  std::int64_t param_persistence_threshold = 0;           ///< smaller parameters stay gathered
  std::int64_t model_persistence_threshold = kUnbounded;  ///< but no more than this in all
  std::int64_t max_live_parameters = kUnbounded;          ///< gathered before some must be freed
  std::int64_t max_reuse_distance = 0;  ///< what is used again within this is not freed
  std::int64_t sub_group_size = 0;      ///< tile of the optimizer step; 0: a unit's shard
  bool overlap_comm = true;             ///< false: a reduction is waited for where it is issued
  bool contiguous_gradients = true;     ///< false: each parameter is reduced by itself
  bool round_robin_gradients = false;

  int gradient_accumulation_steps = 1;
  /// Global L2 norm to clip to; absent: the program decides; 0: no clipping.
  std::optional<double> gradient_clipping;
  OptimizerChoice optimizer;
  ScheduleChoice schedule;
  /// What a DeepSpeed file asks for and this runtime has not, in words; empty: nothing.
  std::string unsupported;

  bool operator==(const ShardingSettings&) const = default;
};

/// Who this worker is: torchrun's variables.
struct WorkerIdentity {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  /// Ranks of each machine by node_rank, where they differ (ACC_LOCAL_WORLD_SIZES); else empty.
  std::vector<int> local_world_sizes = {};
  int node_rank = 0;  ///< GROUP_RANK
  int num_nodes = 1;  ///< GROUP_WORLD_SIZE
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::string run_id = "none";
  int restart_count = 0;
  /// ACC_JOB_SECRET, which all ranks have alike; empty: a launcher other than acclaunch.
  std::string job_secret = {};

  bool operator==(const WorkerIdentity&) const = default;
};

/// Everything that a worker reads from its environment, once, at start.
struct RuntimeSettings {
  WorkerIdentity identity;
  ShardingSettings sharding;
  Device device = Device::cpu;
  /// `fsdp`, `deepspeed`, or `none` when neither mode was asked for: for messages only.
  std::string origin = "none";
  /// The plugin that the program filled in, and in words each value that it set: for messages only.
  std::string program_plugin;
  std::vector<std::string> program_values;
  /// How long a collective waits for a peer that is alive (ACC_COLLECTIVE_TIMEOUT, seconds).
  std::chrono::seconds collective_timeout{1800};
  /// ACC_SHM_GATHER=copy: gathers on one host copy, as those between hosts do.
  bool copy_gathers = false;
  /// ACC_COLLECTIVES: auto, nccl or staged. No effect on the CPU.
  DeviceCollectives device_collectives = DeviceCollectives::automatic;
  /// ACC_SHARE_GPUS=1: more ranks than GPUs on a machine take turns on them; else that is an error.
  bool share_gpus = false;
  /// ACC_DETERMINISTIC=1: whatever could make two runs of one layout differ is switched off.
  bool deterministic = false;
  /// ACC_TRACE: file to which every rank of a machine adds its timeline; empty: none.
  std::string trace;
  /// ACC_FLIGHT_RECORD: file in which this worker leaves its last collectives, for the launcher
  /// that named it; empty: none.
  std::string flight_record;

  bool operator==(const RuntimeSettings&) const = default;
};

}  // namespace acc::plugins
