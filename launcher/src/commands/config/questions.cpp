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

/// With more machines, the machine rank is asked for as a number instead of a menu.
constexpr std::int64_t kLongestRankMenu = 16;

constexpr std::string_view kMachineKinds =
    "NO=No distributed training|MULTI_CPU=multi-CPU|~MULTI_XPU=multi-XPU|~MULTI_HPU=multi-HPU|"
    "MULTI_GPU=multi-GPU|~MULTI_NPU=multi-NPU|~MULTI_MLU=multi-MLU|~MULTI_SDAA=multi-SDAA|"
    "~MULTI_MUSA=multi-MUSA|~MULTI_NEURON=multi-NEURON|~XLA=TPU";
constexpr std::string_view kDynamoBackends =
    "EAGER=eager|AOT_EAGER=aot_eager|INDUCTOR=inductor|AOT_TS_NVFUSER=aot_ts_nvfuser|"
    "NVPRIMS_NVFUSER=nvprims_nvfuser|CUDAGRAPHS=cudagraphs|OFI=ofi|FX2TRT=fx2trt|ONNXRT=onnxrt|"
    "TENSORRT=tensorrt|AOT_TORCHXLA_TRACE_ONCE=aot_torchxla_trace_once|"
    "TORCHXLA_TRACE_ONCE=torchxla_trace_once|TVM=tvm";

// Conditions on earlier answers (Step::asked).
constexpr std::string_view kSeveralMachines = "num_machines>1";
constexpr std::string_view kDeepSpeedKeys = "use_deepspeed !use_deepspeed_file";
constexpr std::string_view kDeepSpeedHosts =
    "use_deepspeed num_machines>1 deepspeed_multinode_launcher!=standard";
constexpr std::string_view kPlainGpus = "type=NO|MULTI_GPU !use_cpu";

// clang-format off
constexpr std::array kSteps = {
    Step{"compute_environment", "Where will you run?", "", "LOCAL_MACHINE",
         "LOCAL_MACHINE=This machine|~AMAZON_SAGEMAKER=AWS (Amazon SageMaker)", menu, kTop},
    Step{"distributed_type", "What kind of machine is it?", "", "NO", kMachineKinds, menu},
    Step{"num_machines", "How many machines take part?", "distributed_type!=NO"},
    Step{"machine_rank", "Which of the machines is this one?", kSeveralMachines, "0", {}, menu},
    Step{"main_process_ip", "Which address does machine 0 have?", kSeveralMachines},
    Step{"main_process_port", "Which port shall machine 0 listen on?", kSeveralMachines, {}, {}, {},
         {}, false, 0, 65535},
    Step{"same_network", "Are all machines in one local network?", kSeveralMachines, "true"},
    Step{"rdzv_backend", "Which rendezvous back end (static, c10d)?", "same_network=false", {}, {},
         text},
    Step{"debug", "Shall collectives be checked for errors at run time (slower)?",
         "distributed_type!=NO"},
    Step{"use_cpu", "Train on the CPU even if there is a GPU?", "distributed_type=NO"},
    Step{"use_mpirun", "Shall mpirun start the processes?", "distributed_type=MULTI_CPU"},
    Step{.key = "mpirun_hostfile", .text = "Which host file shall mpirun read?",
         .asked = "use_mpirun", .fallback = "~/hostfile", .expands_home = true},

    Step{"use_dynamo", "Compile the model with torch dynamo?"},
    Step{"dynamo_backend", "Which dynamo back end?", "use_dynamo", "INDUCTOR", kDynamoBackends},
    Step{"customise_dynamo", "Change the default arguments of torch.compile?", "use_dynamo"},
    Step{"dynamo_mode", "Which mode of torch.compile?", "customise_dynamo"},
    Step{"dynamo_use_fullgraph", "Require a single graph (no graph breaks)?", "customise_dynamo"},
    Step{"dynamo_use_dynamic", "Trace with dynamic shapes?", "customise_dynamo"},
    Step{"dynamo_use_regional_compilation", "Compile repeated blocks once (regional)?",
         "customise_dynamo"},

    Step{"use_deepspeed", "Use DeepSpeed (ZeRO)?", "distributed_type!=MULTI_CPU"},
    Step{"use_deepspeed_file", "Do you have a DeepSpeed JSON file?", "use_deepspeed"},
    Step{"deepspeed_config_file", "Where is the DeepSpeed JSON file?", "use_deepspeed_file"},
    Step{"zero_stage", "Which ZeRO stage?", kDeepSpeedKeys, {}, "0|1|2|3", menu},
    Step{"offload_optimizer_device", "Where shall the optimizer's state be kept?", "zero_stage>1"},
    Step{"offload_param_device", "Where shall parameters be kept?", "zero_stage>1"},
    Step{"offload_param_nvme_path", "Which NVMe folder is for parameters?",
         "offload_param_device=nvme", "/nvme"},
    Step{"offload_optimizer_nvme_path", "Which NVMe folder is for the optimizer's state?",
         "offload_optimizer_device=nvme", "/nvme"},
    Step{"gradient_accumulation_steps", "Over how many micro-steps are gradients accumulated?",
         kDeepSpeedKeys},
    Step{"use_gradient_clipping", "Clip gradients?", kDeepSpeedKeys},
    Step{"gradient_clipping", "What is the largest global gradient norm?", "use_gradient_clipping",
         "1.0"},
    Step{"zero3_save_16bit_model", "Save the whole model in 16 bits with stage 3?", "zero_stage=3"},
    Step{"zero3_init_flag", "Shard the model while it is built (zero.Init, with stage 3)?",
         "use_deepspeed", "false"},
    Step{"use_moe", "Is it a mixture of experts (MoE)?", "use_deepspeed"},
    Step{"deepspeed_moe_layer_cls_names",
         "Which MoE layer classes, joined by commas (such as MixtralSparseMoeBlock)?", "use_moe"},
    Step{"deepspeed_multinode_launcher", "Which of DeepSpeed's launchers?",
         "use_deepspeed num_machines>1", "pdsh"},
    Step{"deepspeed_hostfile", "Where is the host file (lines of \"NAME slots=N\")?",
         kDeepSpeedHosts},
    Step{"use_exclusion_filter", "Leave some hosts or slots out?", kDeepSpeedHosts},
    Step{"deepspeed_exclusion_filter", "Which ones (HOST:SLOT,SLOT@HOST)?", "use_exclusion_filter"},
    Step{"use_inclusion_filter", "Use only some hosts or slots?", kDeepSpeedHosts},
    Step{"deepspeed_inclusion_filter", "Which ones (HOST:SLOT,SLOT@HOST)?", "use_inclusion_filter"},

    Step{"use_fsdp", "Use FSDP (fully sharded data parallel)?",
         "distributed_type=MULTI_GPU !use_deepspeed"},
    Step{"fsdp_version", "Which version of FSDP?", "use_fsdp", "2", "1|2", menu},
    Step{"fsdp_sharding_strategy", "What shall be sharded?", "fsdp_version=1"},
    Step{"fsdp_reshard_after_forward", "Free gathered weights after the forward pass (reshard)?",
         "fsdp_version=2", {}, {}, yes_no},
    Step{"fsdp_offload_params", "Keep parameters and gradients in host memory?", "use_fsdp"},
    Step{"fsdp_auto_wrap_policy", "How is the model cut into units?", "use_fsdp",
         "TRANSFORMER_BASED_WRAP"},
    Step{"use_no_split_modules",
         "Use the layer classes that a Transformers model lists (_no_split_modules)?",
         "fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"},
    Step{"fsdp_transformer_layer_cls_to_wrap",
         "Which layer classes become units, joined by commas (such as LlamaDecoderLayer)?",
         "use_no_split_modules=false", {}, {}, {}, {}, true},
    Step{"fsdp_min_num_params", "What is the smallest number of parameters per unit?",
         "fsdp_auto_wrap_policy=SIZE_BASED_WRAP", {}, {}, {}, {}, false, 0, 1'000'000'000'000},
    Step{"fsdp_backward_prefetch", "When shall the backward pass gather the next unit?",
         "fsdp_version=1", "BACKWARD_PRE"},
    Step{"fsdp_state_dict_type", "Which format shall checkpoints have?", "fsdp_version=1",
         "FULL_STATE_DICT"},
    Step{"fsdp_state_dict_type", "Which format shall checkpoints have?", "fsdp_version=2",
         "SHARDED_STATE_DICT", "SHARDED_STATE_DICT|FULL_STATE_DICT"},
    Step{"fsdp_forward_prefetch", "Shall the forward pass prefetch the next unit?",
         "fsdp_version=1"},
    Step{"fsdp_use_orig_params", "May frozen and trained parameters share a unit?",
         "fsdp_version=1"},
    Step{"fsdp_cpu_ram_efficient_loading", "Shall only rank 0 load the weights?", "use_fsdp"},
    Step{"fsdp_sync_module_states", "Shall rank 0 broadcast its weights to all ranks at the start?",
         "fsdp_version=1 fsdp_cpu_ram_efficient_loading=false"},
    Step{"fsdp_activation_checkpointing", "Recompute activations in the backward pass?",
         "use_fsdp"},

    Step{"use_parallelism", "Set the sizes of the process groups (parallelism_config)?",
         "fsdp_version=2"},
    Step{"parallelism_config_dp_replicate_size", "How many ranks hold the same shard?",
         "use_parallelism"},
    Step{"parallelism_config_dp_shard_size", "Over how many ranks is a copy sharded?",
         "use_parallelism"},
    Step{"parallelism_config_tp_size", "Over how many ranks is a layer split (tensor parallelism)?",
         "use_parallelism"},
    Step{"parallelism_config_cp_size",
         "Over how many ranks is a sequence split (context parallelism)?", "use_parallelism"},
    Step{"parallelism_config_cp_comm_strategy", "How do these ranks exchange keys and values?",
         "parallelism_config_cp_size>1", {}, "allgather|alltoall", menu},

    Step{"num_processes", "How many processes, over all machines?", "type!=NO", "1"},
    Step{"gpu_ids", "Which GPUs of this machine, as a list such as 0,2?", kPlainGpus},
    Step{"enable_cpu_affinity", "Bind each process to the cores near its GPU (NUMA)?", kPlainGpus},
    Step{"mixed_precision", "Which precision shall the model compute in?", "!use_deepspeed_file"},

    Step{"fp8_backend", "Which library computes in fp8?", "mixed_precision=fp8", "AO",
         "AO=ao|TE=te|MSAMP=msamp"},
    Step{"fp8_use_autocast_during_eval", "Use fp8 in evaluation, too?", "fp8_backend=TE"},
    Step{"fp8_margin", "What is the margin of the scaling factor?", "fp8_backend=TE", {}, {}, {},
         {}, false, 0},
    Step{"fp8_interval", "After how many steps is the scaling factor computed again?",
         "fp8_backend=TE"},
    Step{"fp8_format", "Which number format?", "fp8_backend=TE"},
    Step{"fp8_amax_history_len", "How many steps of history determine the scaling factor?",
         "fp8_backend=TE"},
    Step{"fp8_amax_compute_algo", "Which value of that history is used?", "fp8_backend=TE", "max"},
    Step{"fp8_override", "Compute some of the matrix products in higher precision?",
         "fp8_backend=TE"},
    Step{"fp8_override_fprop", "Those of the forward pass (fprop)?", "fp8_override"},
    Step{"fp8_override_dgrad", "Those of the inputs' gradients (dgrad)?", "fp8_override"},
    Step{"fp8_override_wgrad", "Those of the weights' gradients (wgrad)?", "fp8_override"},
    Step{"fp8_opt_level", "Which optimisation level of MS-AMP?", "fp8_backend=MSAMP"},
    Step{"fp8_enable_fsdp_float8_all_gather", "Shall FSDP 2 gather weights in float8?",
         "fp8_backend=AO"},
    Step{"fp8_pad_inner_dim", "Pad the inner dimension of weights for float8 matrix products?",
         "fp8_backend=AO"},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kDefaults = {{
    {"compute_environment", "LOCAL_MACHINE"}, {"debug", "false"}, {"enable_cpu_affinity", "false"},
    {"machine_rank", "0"}, {"num_machines", "1"}, {"rdzv_backend", "static"},
    {"same_network", "false"}, {"use_cpu", "false"}}};
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
    const std::string_view block = settings::block_of(*row);
    step.block = block.empty() ? kTop : block;
  }
  return step;
}

}  // namespace

std::string distributed_type(const Answers& answers) {
  if (answers.yes("use_deepspeed")) {
    return "DEEPSPEED";
  }
  return answers.yes("use_fsdp") ? "FSDP" : *answers.find("distributed_type");
}

void complete_question(const Answers& answers, Question& question) {
  if (question.key == "machine_rank") {
    const std::int64_t machines = answers.number("num_machines", 1);
    if (machines > kLongestRankMenu) {
      question.kind = integer;
    }
    for (std::int64_t rank = 0; rank < std::min(machines, kLongestRankMenu); ++rank) {
      question.choices.push_back({rank, std::to_string(rank), std::to_string(rank)});
    }
    question.minimum = 0;
    question.maximum = machines - 1;
  }
  if (question.key == "num_processes" && !holds(answers, kSeveralMachines) &&
      distributed_type(answers) == "MULTI_GPU") {  // one GPU is "No distributed training"
    question.minimum = 2;
    question.fallback = "2";  // Accelerate's default is 1, with which it ends in an error
  }
}

std::span<const std::pair<std::string_view, std::string_view>> default_answers() noexcept {
  return kDefaults;
}

// With FSDP 1, Accelerate's questionnaire writes only fsdp_reshard_after_forward, which its
// launcher then ignores. Both keys are written, so that questionnaire and launcher agree.
documents::Node derived_fsdp_keys(const Answers& answers) {
  documents::Node keys = documents::Node::map();
  if (const std::string* strategy = answers.find("fsdp_sharding_strategy")) {
    keys.set("fsdp_reshard_after_forward", documents::Node::string(*strategy));
    if (answers.yes("fsdp_cpu_ram_efficient_loading")) {
      keys.set("fsdp_sync_module_states", documents::Node::boolean(true));
    }
  }
  return keys;
}

std::span<const Step> questionnaire_steps() noexcept {
  static const std::array kCompleted = [] {
    std::array<Step, kSteps.size()> steps = kSteps;
    std::ranges::transform(steps, steps.begin(), completed);
    return steps;
  }();
  return kCompleted;
}

}  // namespace acc::launcher::commands
