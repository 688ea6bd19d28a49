// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"
#include "acc/settings/training_settings.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::settings {

/// Sharding strategy: which state is sharded, and over which ranks. Covers FSDP's five strategies
/// and ZeRO stages 0 to 3: NO_SHARD = ZeRO 0, shard_optimizer = ZeRO 1, SHARD_GRAD_OP = ZeRO 2,
/// FULL_SHARD = ZeRO 3. `strategy.hpp` maps each to its switches.
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
/// Back end of collectives on GPU memory: NCCL, or the host back ends with copies through
/// page-locked memory (`staged`). `automatic` uses NCCL if it can connect all ranks of the job.
enum class DeviceCollectives { automatic, nccl, staged };

ACC_API std::string_view to_string(Strategy value) noexcept;
ACC_API std::string_view to_string(MixedPrecision value) noexcept;
ACC_API std::string_view to_string(StateDictType value) noexcept;
ACC_API std::string_view to_string(BackwardPrefetch value) noexcept;
ACC_API std::string_view to_string(WrapPolicy value) noexcept;
ACC_API std::string_view to_string(OffloadDevice value) noexcept;
ACC_API std::string_view to_string(Device value) noexcept;
ACC_API std::string_view to_string(DeviceCollectives value) noexcept;

/// Transfers of offload to NVMe: DeepSpeed's block `aio`, and the buffers.
struct NvmeSettings {
  std::int64_t block_size = 1 << 20;  ///< bytes per request
  int queue_depth = 8;                ///< requests that the disk has at once
  /// Threads that transfer where io_uring is not permitted; at least two are used.
  int intra_op_parallelism = 1;
  bool single_submit = false;  ///< hand each request to the system alone
  bool overlap_events = true;  ///< false: wait for all requests before the next are handed over
  /// Buffers of block_size * queue_depth bytes; at least three are used.
  int buffer_count = 4;

  bool operator==(const NvmeSettings&) const = default;
};

/// Type in which gradients are communicated (DeepSpeed's communication_data_type).
enum class ReduceDtype { fp32, fp16, bf16 };

ACC_API std::string_view to_string(ReduceDtype value) noexcept;

/// Fields that both plugins have: arithmetic and optimizer steps. A field that is not set keeps the
/// launcher's value.
struct TrainingFields {
  std::optional<MixedPrecision> mixed_precision;
  std::optional<ReduceDtype> reduce_dtype;
  std::optional<bool> quantized_weights;
  std::optional<bool> quantized_gradients;
  std::optional<NanPolicy> nan_policy;
  std::optional<bool> stochastic_rounding;
  std::optional<bool> deterministic;
  std::optional<bool> save_async;
  std::optional<std::int64_t> memory_checkpoint_every;
  std::optional<std::int64_t> memory_checkpoint_rate;
  std::optional<int> gradient_accumulation_steps;
  std::optional<double> gradient_clipping;

  bool operator==(const TrainingFields&) const = default;
};

/// The sharding settings that FSDP and DeepSpeed configurations are both translated to. The runtime
/// knows only these. Counts are elements, not bytes, unless the name says otherwise.
struct ShardingSettings {
  static constexpr std::int64_t kUnbounded = INT64_MAX;

  Strategy strategy = Strategy::no_shard;
  /// Number of ranks per shard group for the hybrid strategies; 0: the local world size.
  int shard_size = 0;
  /// hpZ (DeepSpeed's zero_hpz_partition_size): number of ranks that share a secondary copy of the
  /// weights; 1: no secondary copy.
  int hpz_partition_size = 1;
  /// FSDP 2 with an integer reshard_after_forward: number of ranks of the group that weights are
  /// resharded to; 0: the shard group.
  int reshard_size = 0;

  MixedPrecision mixed_precision = MixedPrecision::no;
  /// Type in which gradients are communicated (`no`: fp32); absent: the compute type.
  std::optional<MixedPrecision> reduce_precision;
  /// ZeRO++: numbers are sent to other machines in 8 or 7 bits (docs/sharding.md).
  bool quantized_weights = false;
  bool quantized_gradients = false;
  bool stochastic_rounding = false;  ///< for weights that are stored in 16 bits
  bool deterministic = false;        ///< two runs with the same layout give bitwise equal results
  /// As DeepSpeed: loaded weights are rounded to 16 bits before the fp32 master copy is made.
  bool round_initial_weights = false;
  LossScaling loss_scaling;
  NanPolicy nan_policy = NanPolicy::ignore;
  OffloadDevice offload_param = OffloadDevice::none;
  OffloadDevice offload_optimizer = OffloadDevice::none;
  std::string offload_param_nvme_path;
  std::string offload_optimizer_nvme_path;
  NvmeSettings nvme;

  BackwardPrefetch backward_prefetch = BackwardPrefetch::none;
  bool forward_prefetch = false;
  bool limit_all_gathers = true;

  WrapPolicy wrap_policy = WrapPolicy::unset;
  std::vector<std::string> transformer_layer_classes;
  std::int64_t min_num_params = 100'000'000;
  bool use_orig_params = true;
  bool sync_module_states = true;
  bool cpu_ram_efficient_loading = true;
  bool zero3_init = true;  ///< create parameters sharded; false: create them whole, then shard
  bool activation_checkpointing = false;
  bool activation_checkpointing_offload = false;
  std::string ignored_modules;

  StateDictType state_dict_type = StateDictType::sharded;
  bool save_16bit_model = false;
  bool save_async = false;  ///< CheckpointSeries saves beside the training
  /// Steps between two snapshots in memory (CheckpointSeries::keep_in_memory); 0: none.
  std::int64_t memory_checkpoint_every = 0;
  /// Bytes per second that a rank sends of each to another machine; 0: no limit.
  std::int64_t memory_checkpoint_rate = 0;

  // DeepSpeed's counts of elements. The defaults give FSDP's behaviour.
  /// Largest number of elements per gradient reduction; 0: one unit at a time.
  std::int64_t reduce_bucket_size = 0;
  /// Largest number of elements per all_gather after a step; 0: one unit at a time.
  std::int64_t allgather_bucket_size = 0;
  /// Elements to gather ahead; 0: one unit, as backward_prefetch and forward_prefetch say.
  std::int64_t prefetch_bucket_size = 0;
  /// Parameters with fewer elements stay gathered.
  std::int64_t param_persistence_threshold = 0;
  /// Upper bound of the elements that stay gathered because of param_persistence_threshold.
  std::int64_t model_persistence_threshold = kUnbounded;
  /// Elements that may be gathered at the same time; beyond it, units are freed first.
  std::int64_t max_live_parameters = kUnbounded;
  /// A unit that is used again within this number of elements is not freed.
  std::int64_t max_reuse_distance = 0;
  std::int64_t sub_group_size = 0;   ///< elements per tile of the optimizer step; 0: a unit's shard
  bool overlap_comm = true;          ///< false: wait for each reduction right after issuing it
  bool contiguous_gradients = true;  ///< false: reduce each parameter separately
  bool round_robin_gradients = false;

  int gradient_accumulation_steps = 1;
  /// Global L2 norm to clip gradients to; absent: the program decides; 0: no clipping.
  std::optional<double> gradient_clipping;
  OptimizerChoice optimizer;
  ScheduleChoice schedule;
  /// Features of a DeepSpeed file that this runtime lacks, as text for a message; empty: none.
  std::string unsupported;

  /// True if the model computes in another type than that of its weights.
  [[nodiscard]] bool is_mixed() const noexcept { return mixed_precision != MixedPrecision::no; }
  /// Number of micro-steps per optimizer step, at least 1.
  [[nodiscard]] int micro_steps() const noexcept {
    return std::max(1, gradient_accumulation_steps);
  }

  bool operator==(const ShardingSettings&) const = default;
};

/// Identity of this worker, from torchrun's variables.
struct WorkerIdentity {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  /// Number of ranks per machine, indexed by node_rank, if machines differ (ACC_LOCAL_WORLD_SIZES);
  /// else empty.
  std::vector<int> local_world_sizes = {};
  int node_rank = 0;  ///< GROUP_RANK
  int num_nodes = 1;  ///< GROUP_WORLD_SIZE
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::string run_id = "none";
  int restart_count = 0;
  /// ACC_JOB_SECRET, the same on all ranks; empty under a launcher other than acclaunch.
  std::string job_secret = {};

  bool operator==(const WorkerIdentity&) const = default;
};

/// Options of NCCL communicators. No effect without NCCL.
struct NcclOptions {
  /// ACC_NCCL_ZERO_SM=1: gathers run on copy engines and need no multiprocessor, where NCCL (2.28
  /// or newer) can do that (NCCL_CTA_POLICY_ZERO).
  bool zero_sm = false;
  /// ACC_NCCL_SPLIT_SHARE=1: groups of a part of the ranks use the world's buffers and connections
  /// (ncclConfig_t::splitShare). Saves memory, but NCCL then runs the collectives of all of them
  /// one after the other.
  bool split_share = false;

  bool operator==(const NcclOptions&) const = default;
};

/// All that a worker reads from its environment. Read once, at start.
struct RuntimeSettings {
  WorkerIdentity identity;
  ShardingSettings sharding;
  Device device = Device::cpu;
  // The next four are for messages only.
  /// Mode: `fsdp`, `deepspeed`, or `none` if neither was chosen.
  std::string origin = "none";
  /// Class name of the plugin that the program filled in; empty: none.
  std::string program_plugin;
  /// One text per value that the program set: `zero_stage 3 instead of the launcher's 2`.
  std::vector<std::string> program_values;
  /// Place of each setting that was given, by key: `config.yaml:12`, a flag, a variable, or a field
  /// of the plugin.
  std::map<std::string, std::string> sources;
  /// Time that a collective waits for a peer that is alive (ACC_COLLECTIVE_TIMEOUT, in seconds).
  std::chrono::seconds collective_timeout{1800};
  /// ACC_SHM_GATHER=copy: an all_gather within a machine copies, as between machines, instead of
  /// sharing memory.
  bool copy_gathers = false;
  /// ACC_COLLECTIVES: auto, nccl or staged. No effect on the CPU.
  DeviceCollectives device_collectives = DeviceCollectives::automatic;
  NcclOptions nccl;
  /// ACC_SHARE_GPUS=1: ranks may share GPUs if a machine has more ranks than GPUs; without it that
  /// is an error.
  bool share_gpus = false;
  /// ACC_CHECK=1, or `debug` if ACC_CHECK is unset: gathered weights are read-only in a scope and
  /// inaccessible outside of one, so that a wrong access of the program is reported. No effect on a
  /// GPU.
  bool check = false;
  /// ACC_TRACE: file to which every rank of a machine appends its timeline; empty: none.
  std::string trace;
  /// ACC_FLIGHT_RECORD: file in which this worker records its last collectives for the launcher
  /// (acc/base/flight_record.hpp); empty: none.
  std::string flight_record;
  /// ACC_SNAPSHOT_MEMORY: paths of the memory for snapshots of this machine's ranks, files in
  /// memory that the launcher holds, by local rank; empty: none.
  std::vector<std::string> snapshot_memory;
  /// ACC_MEMBERSHIP: path of the page by which the launcher tells that it has replaced ended
  /// workers by spares (acc/base/membership_page.hpp); empty: it replaces none.
  std::string membership;
  /// The number of machines may change while this process goes on (--elastic_replicas). Not from
  /// the environment: the page of the membership tells.
  bool elastic_replicas = false;
  /// What this process records for `acclaunch compare` (docs/formats/recording.md).
  struct Recording {
    std::string folder;  ///< ACC_RECORD; empty: nothing
    int steps = 0;       ///< ACC_RECORD_STEPS: the process ends after so many; 0: it does not
    bool operator==(const Recording&) const = default;
  };
  Recording recording;
  /// Where DataOrder records the samples that this rank uses.
  struct DataRecord {
    std::string folder;  ///< ACC_DATA_RECORD; empty: nowhere
    int round = 0;       ///< ACC_DATA_ROUND: number of the job's round
    bool operator==(const DataRecord&) const = default;
  };
  DataRecord data_record;

  bool operator==(const RuntimeSettings&) const = default;
};

}  // namespace acc::settings
