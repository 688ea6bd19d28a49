// SPDX-License-Identifier: Apache-2.0
// The questionnaire as a table. The order of rows is the order of questions, and a row's condition
// may refer only to answers of earlier rows. Two rows may have the same key if at most one of them
// is asked (fsdp_state_dict_type). Keys, values and defaults are those of Accelerate's
// configuration file; the questions' texts are ours. What a row does not give is that of the
// setting of this name, where Accelerate's questionnaire has the same.
#include "acc/settings/settings_table.hpp"
#include "commands/config/questionnaire.hpp"

#include <algorithm>
#include <array>

namespace acc::launcher::commands {
namespace {

using enum QuestionKind;

constexpr std::string_view kMachineKinds =
    "NO=No distributed training|MULTI_CPU=multi-CPU|~MULTI_XPU=multi-XPU|~MULTI_HPU=multi-HPU|"
    "MULTI_GPU=multi-GPU|~MULTI_NPU=multi-NPU|~MULTI_MLU=multi-MLU|~MULTI_SDAA=multi-SDAA|"
    "~MULTI_MUSA=multi-MUSA|~MULTI_NEURON=multi-NEURON|~XLA=TPU";
constexpr std::string_view kDynamoBackends =
    "EAGER=eager|AOT_EAGER=aot_eager|INDUCTOR=inductor|AOT_TS_NVFUSER=aot_ts_nvfuser|"
    "NVPRIMS_NVFUSER=nvprims_nvfuser|CUDAGRAPHS=cudagraphs|OFI=ofi|FX2TRT=fx2trt|ONNXRT=onnxrt|"
    "TENSORRT=tensorrt|AOT_TORCHXLA_TRACE_ONCE=aot_torchxla_trace_once|"
    "TORCHXLA_TRACE_ONCE=torchxla_trace_once|TVM=tvm";

// Conditions on earlier answers. A question that was not asked has no answer, and equals no value.
bool several_kinds(const Answers& a) {
  return !a.is("distributed_type", "NO");
}
bool several_machines(const Answers& a) {
  return a.number("num_machines", 1) > 1;
}
bool dynamo(const Answers& a) {
  return a.yes("use_dynamo");
}
bool dynamo_options(const Answers& a) {
  return a.yes("customise_dynamo");
}
bool deepspeed(const Answers& a) {
  return a.yes("use_deepspeed");
}
bool deepspeed_keys(const Answers& a) {
  return deepspeed(a) && !a.yes("use_deepspeed_file");
}
bool zero2_or_3(const Answers& a) {
  return a.number("zero_stage", 0) >= 2;
}
bool deepspeed_hosts(const Answers& a) {
  return deepspeed(a) && several_machines(a) && !a.is("deepspeed_multinode_launcher", "standard");
}
bool fsdp(const Answers& a) {
  return a.yes("use_fsdp");
}
bool fsdp1(const Answers& a) {
  return fsdp(a) && a.is("fsdp_version", "1");
}
bool loads_everywhere(const Answers& a) {
  return fsdp1(a) && a.is("fsdp_cpu_ram_efficient_loading", "false");
}
bool fsdp2(const Answers& a) {
  return fsdp(a) && a.is("fsdp_version", "2");
}
bool parallelism(const Answers& a) {
  return a.yes("use_parallelism");
}
bool transformer_engine(const Answers& a) {
  return a.is("fp8_backend", "TE");
}
bool fp8_override(const Answers& a) {
  return a.yes("fp8_override");
}
bool torchao(const Answers& a) {
  return a.is("fp8_backend", "AO");
}
bool plain_gpus(const Answers& a) {
  const std::string type = distributed_type(a);
  return (type == "NO" || type == "MULTI_GPU") && !a.yes("use_cpu");
}

// clang-format off
constexpr std::array kSteps = {
    Step{"compute_environment", "Where will you run?", nullptr, "LOCAL_MACHINE",
         "LOCAL_MACHINE=This machine|~AMAZON_SAGEMAKER=AWS (Amazon SageMaker)", menu, kTop},
    Step{"distributed_type", "What kind of machine is it?", nullptr, "NO", kMachineKinds, menu},
    Step{"num_machines", "How many machines take part?", several_kinds},
    Step{"machine_rank", "Which of the machines is this one?", several_machines, "0", {}, menu},
    Step{"main_process_ip", "Which address does machine 0 have?", several_machines},
    Step{"main_process_port", "Which port shall machine 0 listen on?", several_machines, {}, {}, {},
         {}, false, 0, 65535},
    Step{"same_network", "Are all machines in one local network?", several_machines, "true"},
    Step{"rdzv_backend", "Which rendezvous back end (static, c10d)?",
         [](const Answers& a) { return a.is("same_network", "false"); }, {}, {}, text},
    Step{"debug", "Shall collectives be checked for errors at run time (slower)?", several_kinds},
    Step{"use_cpu", "Train on the CPU even if there is a GPU?",
         [](const Answers& a) { return !several_kinds(a); }},
    Step{"use_mpirun", "Shall mpirun start the processes?",
         [](const Answers& a) { return a.is("distributed_type", "MULTI_CPU"); }},
    Step{"mpirun_hostfile", "Which host file shall mpirun read?",
         [](const Answers& a) { return a.yes("use_mpirun"); }, "~/hostfile", {}, {},
         "mpirun_config"},

    Step{"use_dynamo", "Compile the model with torch dynamo?"},
    Step{"dynamo_backend", "Which dynamo back end?", dynamo, "INDUCTOR", kDynamoBackends},
    Step{"customise_dynamo", "Change the default arguments of torch.compile?", dynamo},
    Step{"dynamo_mode", "Which mode of torch.compile?", dynamo_options},
    Step{"dynamo_use_fullgraph", "Require a single graph (no graph breaks)?", dynamo_options},
    Step{"dynamo_use_dynamic", "Trace with dynamic shapes?", dynamo_options},
    Step{"dynamo_use_regional_compilation", "Compile repeated blocks once (regional)?",
         dynamo_options},

    Step{"use_deepspeed", "Use DeepSpeed (ZeRO)?",
         [](const Answers& a) { return !a.is("distributed_type", "MULTI_CPU"); }},
    Step{"use_deepspeed_file", "Do you have a DeepSpeed JSON file?", deepspeed},
    Step{"deepspeed_config_file", "Where is the DeepSpeed JSON file?",
         [](const Answers& a) { return a.yes("use_deepspeed_file"); }},
    Step{"zero_stage", "Which ZeRO stage?", deepspeed_keys, {}, "0|1|2|3", menu},
    Step{"offload_optimizer_device", "Where shall the optimizer's state be kept?", zero2_or_3},
    Step{"offload_param_device", "Where shall parameters be kept?", zero2_or_3},
    Step{"offload_param_nvme_path", "Which NVMe folder is for parameters?",
         [](const Answers& a) { return a.is("offload_param_device", "nvme"); }, "/nvme"},
    Step{"offload_optimizer_nvme_path", "Which NVMe folder is for the optimizer's state?",
         [](const Answers& a) { return a.is("offload_optimizer_device", "nvme"); }, "/nvme"},
    Step{"gradient_accumulation_steps", "Over how many micro-steps are gradients accumulated?",
         deepspeed_keys},
    Step{"use_gradient_clipping", "Clip gradients?", deepspeed_keys},
    Step{"gradient_clipping", "What is the largest global gradient norm?",
         [](const Answers& a) { return a.yes("use_gradient_clipping"); }, "1.0"},
    Step{"zero3_save_16bit_model", "Save the whole model in 16 bits with stage 3?",
         [](const Answers& a) { return a.is("zero_stage", "3"); }},
    Step{"zero3_init_flag", "Shard the model while it is built (zero.Init, with stage 3)?",
         deepspeed, "false"},
    Step{"use_moe", "Is it a mixture of experts (MoE)?", deepspeed},
    Step{"deepspeed_moe_layer_cls_names",
         "Which MoE layer classes, joined by commas (such as MixtralSparseMoeBlock)?",
         [](const Answers& a) { return a.yes("use_moe"); }},
    Step{"deepspeed_multinode_launcher", "Which of DeepSpeed's launchers?",
         [](const Answers& a) { return deepspeed(a) && several_machines(a); }, "pdsh"},
    Step{"deepspeed_hostfile", "Where is the host file (lines of \"NAME slots=N\")?",
         deepspeed_hosts},
    Step{"use_exclusion_filter", "Leave some hosts or slots out?", deepspeed_hosts},
    Step{"deepspeed_exclusion_filter", "Which ones (HOST:SLOT,SLOT@HOST)?",
         [](const Answers& a) { return a.yes("use_exclusion_filter"); }},
    Step{"use_inclusion_filter", "Use only some hosts or slots?", deepspeed_hosts},
    Step{"deepspeed_inclusion_filter", "Which ones (HOST:SLOT,SLOT@HOST)?",
         [](const Answers& a) { return a.yes("use_inclusion_filter"); }},

    Step{"use_fsdp", "Use FSDP (fully sharded data parallel)?",
         [](const Answers& a) { return a.is("distributed_type", "MULTI_GPU") && !deepspeed(a); }},
    Step{"fsdp_version", "Which version of FSDP?", fsdp, "2", "1|2", menu},
    Step{"fsdp_sharding_strategy", "What shall be sharded?", fsdp1},
    Step{"fsdp_reshard_after_forward", "Free gathered weights after the forward pass (reshard)?",
         fsdp2, {}, {}, yes_no},
    Step{"fsdp_offload_params", "Keep parameters and gradients in host memory?", fsdp},
    Step{"fsdp_auto_wrap_policy", "How is the model cut into units?", fsdp,
         "TRANSFORMER_BASED_WRAP"},
    Step{"use_no_split_modules",
         "Use the layer classes that a Transformers model lists (_no_split_modules)?",
         [](const Answers& a) { return a.is("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"); }},
    Step{"fsdp_transformer_layer_cls_to_wrap",
         "Which layer classes become units, joined by commas (such as LlamaDecoderLayer)?",
         [](const Answers& a) { return a.is("use_no_split_modules", "false"); }, {}, {}, {}, {},
         true},
    Step{"fsdp_min_num_params", "What is the smallest number of parameters per unit?",
         [](const Answers& a) { return a.is("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"); }, {}, {},
         {}, {}, false, 0, 1'000'000'000'000},
    Step{"fsdp_backward_prefetch", "When shall the backward pass gather the next unit?", fsdp1,
         "BACKWARD_PRE"},
    Step{"fsdp_state_dict_type", "Which format shall checkpoints have?", fsdp1, "FULL_STATE_DICT"},
    Step{"fsdp_state_dict_type", "Which format shall checkpoints have?", fsdp2,
         "SHARDED_STATE_DICT", "SHARDED_STATE_DICT|FULL_STATE_DICT"},
    Step{"fsdp_forward_prefetch", "Shall the forward pass prefetch the next unit?", fsdp1},
    Step{"fsdp_use_orig_params", "May frozen and trained parameters share a unit?", fsdp1},
    Step{"fsdp_cpu_ram_efficient_loading", "Shall only rank 0 load the weights?", fsdp},
    Step{"fsdp_sync_module_states", "Shall rank 0 broadcast its weights to all ranks at the start?",
         loads_everywhere},
    Step{"fsdp_activation_checkpointing", "Recompute activations in the backward pass?", fsdp},

    Step{"use_parallelism", "Set the sizes of the process groups (parallelism_config)?", fsdp2},
    Step{"parallelism_config_dp_replicate_size", "How many ranks hold the same shard?",
         parallelism},
    Step{"parallelism_config_dp_shard_size", "Over how many ranks is a copy sharded?", parallelism},
    Step{"parallelism_config_tp_size", "Over how many ranks is a layer split (tensor parallelism)?",
         parallelism},
    Step{"parallelism_config_cp_size",
         "Over how many ranks is a sequence split (context parallelism)?", parallelism},
    Step{"parallelism_config_cp_comm_strategy", "How do these ranks exchange keys and values?",
         [](const Answers& a) { return a.number("parallelism_config_cp_size", 1) > 1; }, {},
         "allgather|alltoall", menu},

    Step{"num_processes", "How many processes, over all machines?",
         [](const Answers& a) { return distributed_type(a) != "NO"; }, "1"},
    Step{"gpu_ids", "Which GPUs of this machine, as a list such as 0,2?", plain_gpus},
    Step{"enable_cpu_affinity", "Bind each process to the cores near its GPU (NUMA)?", plain_gpus},
    Step{"mixed_precision", "Which precision shall the model compute in?",
         [](const Answers& a) { return !a.yes("use_deepspeed_file"); }},

    Step{"fp8_backend", "Which library computes in fp8?",
         [](const Answers& a) { return a.is("mixed_precision", "fp8"); }, "AO",
         "AO=ao|TE=te|MSAMP=msamp"},
    Step{"fp8_use_autocast_during_eval", "Use fp8 in evaluation, too?", transformer_engine},
    Step{"fp8_margin", "What is the margin of the scaling factor?", transformer_engine, {}, {}, {},
         {}, false, 0},
    Step{"fp8_interval", "After how many steps is the scaling factor computed again?",
         transformer_engine},
    Step{"fp8_format", "Which number format?", transformer_engine},
    Step{"fp8_amax_history_len", "How many steps of history determine the scaling factor?",
         transformer_engine},
    Step{"fp8_amax_compute_algo", "Which value of that history is used?", transformer_engine,
         "max"},
    Step{"fp8_override", "Compute some of the matrix products in higher precision?",
         transformer_engine},
    Step{"fp8_override_fprop", "Those of the forward pass (fprop)?", fp8_override},
    Step{"fp8_override_dgrad", "Those of the inputs' gradients (dgrad)?", fp8_override},
    Step{"fp8_override_wgrad", "Those of the weights' gradients (wgrad)?", fp8_override},
    Step{"fp8_opt_level", "Which optimisation level of MS-AMP?",
         [](const Answers& a) { return a.is("fp8_backend", "MSAMP"); }},
    Step{"fp8_enable_fsdp_float8_all_gather", "Shall FSDP 2 gather weights in float8?", torchao},
    Step{"fp8_pad_inner_dim", "Pad the inner dimension of weights for float8 matrix products?",
         torchao},
};
// clang-format on

Step completed(Step step) {
  using settings::Type;
  const settings::SettingRow* row = settings::find_setting(step.key);
  if (row == nullptr) {
    step.kind = step.kind.value_or(yes_no);
    step.fallback = step.kind == yes_no ? "false" : step.fallback;
    return step;
  }
  const bool has_words = row->type == Type::choice || row->type == Type::numbered_choice;
  step.kind = step.kind.value_or(has_words                    ? menu
                                 : row->type == Type::boolean ? yes_no
                                 : row->type == Type::integer ? integer
                                 : row->type == Type::real    ? real
                                                              : text);
  step.fallback = step.fallback.empty() ? row->fallback : step.fallback;
  step.choices = step.choices.empty() && has_words ? row->allowed : step.choices;
  if (step.block.empty() && row->in_file) {
    const std::string_view block = settings::block_of(row->section);
    step.block = block.empty() ? kTop : block;
  }
  return step;
}

}  // namespace

std::span<const Step> questionnaire_steps() noexcept {
  static const std::array kCompleted = [] {
    std::array<Step, kSteps.size()> steps = kSteps;
    std::ranges::transform(steps, steps.begin(), completed);
    return steps;
  }();
  return kCompleted;
}

}  // namespace acc::launcher::commands
