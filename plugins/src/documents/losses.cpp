#include "documents/losses.hpp"

#include <array>

namespace acc::plugins {
namespace {

constexpr std::string_view kNoUnits = "DeepSpeed gathers parameter by parameter, in no units";
constexpr std::string_view kPrefetch =
    "DeepSpeed prefetches by bytes (stage3_prefetch_bucket_size), with stage 3 in both directions";
constexpr std::string_view kCheckpointing =
    "DeepSpeed recomputes through its own API alone; switch it on in the program";
constexpr std::string_view kProgram =
    "DeepSpeed mode hands on no dynamo settings; compile in the "
    "program";

constexpr std::array kLostInDeepSpeed = {
    Loss{"fsdp_auto_wrap_policy", "NO_WRAP", kNoUnits},
    Loss{"fsdp_transformer_layer_cls_to_wrap", "", kNoUnits},
    Loss{"fsdp_min_num_params", "100000000", kNoUnits},
    Loss{"fsdp_backward_prefetch", "", kPrefetch},
    Loss{"fsdp_forward_prefetch", "", kPrefetch},
    Loss{"fsdp_limit_all_gathers", "true",
         "DeepSpeed bounds gathers by counts of elements (stage3_max_live_parameters)"},
    Loss{"fsdp_use_orig_params", "true",
         "DeepSpeed mixes frozen and trained parameters without being told"},
    Loss{"fsdp_sync_module_states", "true", "DeepSpeed always hands out rank 0's weights"},
    Loss{"fsdp_activation_checkpointing", "false", kCheckpointing},
    Loss{"fsdp_activation_checkpointing_offload", "false", kCheckpointing},
    Loss{"fsdp_ignored_modules", "", "DeepSpeed takes every parameter"},
    Loss{"dynamo_backend", "no", kProgram},
    Loss{"dynamo_mode", "default", kProgram},
    Loss{"dynamo_use_fullgraph", "false", kProgram},
    Loss{"dynamo_use_dynamic", "false", kProgram},
    Loss{"dynamo_use_regional_compilation", "false", kProgram},
};

constexpr std::array kLostInFsdp1 = {
    Loss{"fsdp_activation_checkpointing_offload", "false", "FSDP 1 keeps activations on the GPU"},
};

constexpr std::string_view kGone = "FSDP 2 does so without being told";
constexpr std::array kLostInFsdp2 = {
    Loss{"fsdp_limit_all_gathers", "true", "FSDP 2 bounds them by itself"},
    Loss{"fsdp_backward_prefetch", "BACKWARD_PRE|1", "FSDP 2 always prefetches as BACKWARD_PRE"},
    Loss{"fsdp_forward_prefetch", "false", "FSDP 2 has it in the program alone"},
    Loss{"fsdp_use_orig_params", "true", kGone},
    Loss{"fsdp_sync_module_states", "true", kGone},
};

constexpr std::string_view kEveryMachine = "FSDP is started on every machine";
constexpr std::string_view kBuckets = "FSDP works by units, not by counts of elements";
constexpr std::string_view kScaler = "FSDP's loss scale is moved by PyTorch's rule";
constexpr std::array kLostInFsdp = {
    Loss{"offload_optimizer_nvme_path", "none", "FSDP offloads to host memory alone"},
    Loss{"offload_param_nvme_path", "none", "FSDP offloads to host memory alone"},
    Loss{"deepspeed_moe_layer_cls_names", "",
         "name such classes in fsdp_transformer_layer_cls_to_wrap, which makes each a unit"},
    Loss{"deepspeed_multinode_launcher", "standard", kEveryMachine},
    Loss{"deepspeed_hostfile", "none", kEveryMachine},
    Loss{"deepspeed_inclusion_filter", "none", kEveryMachine},
    Loss{"deepspeed_exclusion_filter", "none", kEveryMachine},
    Loss{"reduce_bucket_size", "500000000|5e8", kBuckets},
    Loss{"allgather_bucket_size", "500000000|5e8", kBuckets},
    Loss{"stage3_prefetch_bucket_size", "50000000|5e7", kBuckets},
    Loss{"stage3_param_persistence_threshold", "100000|1e5",
         "FSDP shards small parameters with the unit that they are in"},
    Loss{"stage3_model_persistence_threshold", "",
         "FSDP shards small parameters with the unit that they are in"},
    Loss{"stage3_max_live_parameters", "1000000000|1e9", "FSDP bounds gathers by units"},
    Loss{"stage3_max_reuse_distance", "1000000000|1e9", "FSDP bounds gathers by units"},
    Loss{"sub_group_size", "1000000000|1e9", kBuckets},
    Loss{"overlap_comm", "true", "FSDP always overlaps"},
    Loss{"contiguous_gradients", "true", "a unit's gradients always lie together in FSDP"},
    Loss{"round_robin_gradients", "false", kBuckets},
    Loss{"fp16_loss_scale", "0", kScaler},
    Loss{"fp16_initial_scale_power", "16", kScaler},
    Loss{"fp16_loss_scale_window", "1000", kScaler},
    Loss{"fp16_hysteresis", "2", kScaler},
    Loss{"fp16_consecutive_hysteresis", "false", kScaler},
    Loss{"fp16_min_loss_scale", "1", kScaler},
};

}  // namespace

std::span<const Loss> lost_in_deepspeed() noexcept {
  return kLostInDeepSpeed;
}

std::span<const Loss> lost_in_fsdp() noexcept {
  return kLostInFsdp;
}

std::span<const Loss> lost_in_fsdp1() noexcept {
  return kLostInFsdp1;
}

std::span<const Loss> lost_in_fsdp2() noexcept {
  return kLostInFsdp2;
}

}  // namespace acc::plugins
