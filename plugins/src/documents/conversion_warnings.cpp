// SPDX-License-Identifier: Apache-2.0
#include "documents/conversion_warnings.hpp"

#include "acc/plugins/setting_rows.hpp"

#include <array>

namespace acc::plugins {
namespace {

// Tables of settings without a counterpart. A quiet value is the default, or the value that is the
// only behaviour of the target, so that losing it changes nothing.

constexpr std::string_view kNoUnits = "DeepSpeed gathers single parameters, not units";
constexpr std::string_view kPrefetch =
    "DeepSpeed prefetches by number of elements (stage3_prefetch_bucket_size), with stage 3 in "
    "forward and backward";
constexpr std::string_view kCheckpointing =
    "DeepSpeed recomputes activations only through its own API; switch it on in the program";
constexpr std::string_view kProgram =
    "DeepSpeed mode passes no dynamo settings on; compile in the program";

constexpr std::array kLostInDeepSpeed = {
    ConversionWarning{"fsdp_auto_wrap_policy"_key, "NO_WRAP", kNoUnits},
    ConversionWarning{"fsdp_transformer_layer_cls_to_wrap"_key, "", kNoUnits},
    ConversionWarning{"fsdp_min_num_params"_key, "100000000", kNoUnits},
    ConversionWarning{"fsdp_backward_prefetch"_key, "", kPrefetch},
    ConversionWarning{"fsdp_forward_prefetch"_key, "", kPrefetch},
    ConversionWarning{
        "fsdp_limit_all_gathers"_key, "true",
        "DeepSpeed bounds gathers by numbers of elements (stage3_max_live_parameters)"},
    ConversionWarning{"fsdp_use_orig_params"_key, "true",
                      "DeepSpeed always allows frozen and trained parameters together"},
    ConversionWarning{"fsdp_sync_module_states"_key, "true",
                      "DeepSpeed always sends rank 0's weights to all ranks"},
    ConversionWarning{"fsdp_activation_checkpointing"_key, "false", kCheckpointing},
    ConversionWarning{"fsdp_activation_checkpointing_offload"_key, "false", kCheckpointing},
    ConversionWarning{"fsdp_ignored_modules"_key, "", "DeepSpeed shards every parameter"},
    ConversionWarning{"dynamo_backend"_key, "no", kProgram},
    ConversionWarning{"dynamo_mode"_key, "default", kProgram},
    ConversionWarning{"dynamo_use_fullgraph"_key, "false", kProgram},
    ConversionWarning{"dynamo_use_dynamic"_key, "false", kProgram},
    ConversionWarning{"dynamo_use_regional_compilation"_key, "false", kProgram},
};

constexpr std::array kLostInFsdp1 = {
    ConversionWarning{"fsdp_activation_checkpointing_offload"_key, "false",
                      "FSDP 1 keeps activations on the GPU"},
};

constexpr std::string_view kGone = "FSDP 2 always does this";
constexpr std::array kLostInFsdp2 = {
    ConversionWarning{"fsdp_limit_all_gathers"_key, "true", "FSDP 2 always limits all_gathers"},
    ConversionWarning{"fsdp_backward_prefetch"_key, "BACKWARD_PRE|1",
                      "FSDP 2 always prefetches as BACKWARD_PRE"},
    ConversionWarning{"fsdp_forward_prefetch"_key, "false",
                      "with FSDP 2 only the program can switch it on"},
    ConversionWarning{"fsdp_use_orig_params"_key, "true", kGone},
    ConversionWarning{"fsdp_sync_module_states"_key, "true", kGone},
};

constexpr std::string_view kEveryMachine = "FSDP is started on every machine";
constexpr std::string_view kBuckets = "FSDP works by units, not by numbers of elements";
constexpr std::string_view kScaler = "FSDP's loss scale follows PyTorch's rule";
constexpr std::array kLostInFsdp = {
    ConversionWarning{"offload_optimizer_nvme_path"_key, "none",
                      "FSDP offloads to host memory only"},
    ConversionWarning{"offload_param_nvme_path"_key, "none", "FSDP offloads to host memory only"},
    ConversionWarning{
        "deepspeed_moe_layer_cls_names"_key, "",
        "name such classes in fsdp_transformer_layer_cls_to_wrap, which makes each a unit"},
    ConversionWarning{"deepspeed_multinode_launcher"_key, "standard", kEveryMachine},
    ConversionWarning{"deepspeed_hostfile"_key, "none", kEveryMachine},
    ConversionWarning{"deepspeed_inclusion_filter"_key, "none", kEveryMachine},
    ConversionWarning{"deepspeed_exclusion_filter"_key, "none", kEveryMachine},
    ConversionWarning{"reduce_bucket_size"_key, "500000000|5e8", kBuckets},
    ConversionWarning{"allgather_bucket_size"_key, "500000000|5e8", kBuckets},
    ConversionWarning{"stage3_prefetch_bucket_size"_key, "50000000|5e7", kBuckets},
    ConversionWarning{"stage3_param_persistence_threshold"_key, "100000|1e5",
                      "FSDP shards small parameters together with their unit"},
    ConversionWarning{"stage3_model_persistence_threshold"_key, "",
                      "FSDP shards small parameters together with their unit"},
    ConversionWarning{"stage3_max_live_parameters"_key, "1000000000|1e9",
                      "FSDP bounds gathers by units"},
    ConversionWarning{"stage3_max_reuse_distance"_key, "1000000000|1e9",
                      "FSDP bounds gathers by units"},
    ConversionWarning{"sub_group_size"_key, "1000000000|1e9", kBuckets},
    ConversionWarning{"overlap_comm"_key, "true",
                      "FSDP always overlaps communication with computation"},
    ConversionWarning{"contiguous_gradients"_key, "true",
                      "FSDP always keeps a unit's gradients in one buffer"},
    ConversionWarning{"round_robin_gradients"_key, "false", kBuckets},
    ConversionWarning{"fp16_loss_scale"_key, "0", kScaler},
    ConversionWarning{"fp16_initial_scale_power"_key, "16", kScaler},
    ConversionWarning{"fp16_loss_scale_window"_key, "1000", kScaler},
    ConversionWarning{"fp16_hysteresis"_key, "2", kScaler},
    ConversionWarning{"fp16_consecutive_hysteresis"_key, "false", kScaler},
    ConversionWarning{"fp16_min_loss_scale"_key, "1", kScaler},
};

}  // namespace

std::span<const ConversionWarning> lost_in_deepspeed() noexcept {
  return kLostInDeepSpeed;
}

std::span<const ConversionWarning> lost_in_fsdp() noexcept {
  return kLostInFsdp;
}

std::span<const ConversionWarning> lost_in_fsdp1() noexcept {
  return kLostInFsdp1;
}

std::span<const ConversionWarning> lost_in_fsdp2() noexcept {
  return kLostInFsdp2;
}

}  // namespace acc::plugins
