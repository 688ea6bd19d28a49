// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/deepspeed_json.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/setting_rows.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace acc::documents {

using settings::operator""_key;
namespace {

using test::contains;
using Words = std::vector<std::string>;

struct Given {
  std::string key, text, where;
  settings::Source::Kind kind = settings::Source::Kind::flag;
};

settings::Settings settings_with(const std::vector<Given>& given) {
  settings::Settings settings;
  for (const Given& each : given) {
    settings.set_named(each.key, each.text, {each.kind, each.where});
  }
  return settings;
}

/// Returns the text of a file with these lines inside the outer braces, starting at line 2.
std::string file_of(const std::string& lines) {
  return "{\n" + lines + "\n}";
}

/// Returns a file with all required keys and more lines, starting at line 4.
std::string file_with(const std::string& lines) {
  return file_of(
      "\"zero_optimization\": {\"stage\": 2},\n\"train_micro_batch_size_per_gpu\": \"auto\"" +
      (lines.empty() ? "" : ",\n" + lines));
}

std::string refusal(const std::string& text, settings::Settings settings = settings::Settings()) {
  return test::refusal([&] { apply_deepspeed_json(parse_json(text, "d.json"), 4, settings); });
}

Words paths(const std::vector<DeepSpeedFile::Key>& keys) {
  Words result;
  std::ranges::transform(keys, std::back_inserter(result), &DeepSpeedFile::Key::path);
  return result;
}

TEST_CASE("DeepSpeed JSON: a file with every key is read completely") {
  const std::string text = file_of(R"("train_batch_size": 32,
"train_micro_batch_size_per_gpu": 4,
"optimizer": {"type": "adamw", "params": {"lr": "auto", "betas": [0.9, 0.95], "torch_adam": true}},
"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": "auto"}},
"gradient_clipping": 0.5, "prescale_gradients": true, "gradient_predivide_factor": 2.0,
"communication_data_type": "fp32", "steps_per_print": 10, "wall_clock_breakdown": false,
"zero_allow_untested_optimizer": true, "zero_force_ds_cpu_optimizer": false,
"fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 12},
"bf16": {"enabled": true, "immediate_grad_update": true},
"activation_checkpointing": {"partition_activations": true, "number_checkpoints": 4},
"aio": {"block_size": 2e6, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": true,
  "overlap_events": false, "use_gds": true},
"zero_optimization": {"stage": 3, "overlap_comm": false, "reduce_bucket_size": 2e8,
  "stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 1e9, "zero_hpz_partition_size": 2,
  "zero_quantized_weights": true, "reduce_scatter": true, "leaf_module": {"classes": ["Moe"]},
  "offload_param": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 6},
  "offload_optimizer": {"device": "cpu", "buffer_count": 5, "ratio": 0.5, "pin_memory": true}})");
  settings::Settings settings;
  const DeepSpeedFile file = apply_deepspeed_json(parse_json(text, "d.json"), 4, settings);
  for (const auto& [key, expected] : {std::pair{"zero_stage", "3"},
                                      {"gradient_accumulation_steps", "2"},
                                      {"gradient_clipping", "0.5"},
                                      {"mixed_precision", "bf16"},
                                      {"zero_hpz_partition_size", "2"},
                                      {"overlap_comm", "false"},
                                      {"reduce_bucket_size", "2e8"},
                                      {"stage3_prefetch_bucket_size", "50000000"},
                                      {"offload_param_device", "nvme"},
                                      {"offload_param_nvme_path", "/nvme"},
                                      {"offload_optimizer_device", "cpu"},
                                      {"offload_optimizer_buffer_count", "5"},
                                      {"aio_block_size", "2e6"},
                                      {"aio_queue_depth", "16"},
                                      {"aio_intra_op_parallelism", "2"},
                                      {"aio_single_submit", "true"},
                                      {"aio_overlap_events", "false"},
                                      {"reduce_dtype", "fp32"},
                                      {"quantized_weights", "true"},
                                      {"quantized_gradients", "false"},
                                      {"fp16_initial_scale_power", "12"},
                                      {"optimizer_type", "adamw"},
                                      {"optimizer_lr", ""},
                                      {"optimizer_betas", "0.9,0.95"},
                                      {"optimizer_weight_decay", ""},
                                      {"scheduler_type", "WarmupDecayLR"},
                                      {"scheduler_warmup_num_steps", "10"},
                                      {"scheduler_total_num_steps", ""},
                                      {"deepspeed_unsupported",
                                       "prescale_gradients true; gradient_predivide_factor 2.0; "
                                       "activation_checkpointing.partition_activations true; "
                                       "aio.use_gds true; "
                                       "zero_optimization.offload_optimizer.ratio 0.5"}}) {
    CAPTURE(key);
    CHECK(settings.text(*settings::find_setting(key)) == expected);
  }
  CHECK(settings.source("zero_stage"_key).where == "d.json:14");
  CHECK(settings.source("gradient_accumulation_steps"_key).where == "d.json:2");
  CHECK(paths(file.left_to_program) ==
        Words{"train_batch_size", "train_micro_batch_size_per_gpu", "optimizer", "scheduler",
              "prescale_gradients", "gradient_predivide_factor", "steps_per_print",
              "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
              "bf16.immediate_grad_update", "activation_checkpointing.partition_activations",
              "activation_checkpointing.number_checkpoints", "aio.use_gds",
              "zero_optimization.leaf_module", "zero_optimization.offload_param.buffer_count",
              "zero_optimization.offload_optimizer.ratio"});
  CHECK(paths(file.filled_by_program) == Words{"optimizer.params.lr",
                                               "scheduler.params.total_num_steps",
                                               "zero_optimization.stage3_prefetch_bucket_size"});
  REQUIRE(file.notices.size() == 2);
  CHECK(contains(file.notices[0], "d.json: left to the program: train_batch_size, "));
  CHECK(contains(file.notices[1], "filled in by the program: optimizer.params.lr"));
}

TEST_CASE(
    "DeepSpeed JSON: an optimizer gets the runtime's name, or a name with the missing features") {
  struct Case {
    std::string block, type;
    Words values = {};  ///< keys and texts alternate
  };
  for (const auto& [block, type, values] : std::vector<Case>{
           {R"({"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-7}})",
            "adamw",
            {"optimizer_lr", "1e-3", "optimizer_eps", "1e-7", "optimizer_weight_decay", "0"}},
           {R"({"type": "Adam"})", "adamw", {"optimizer_weight_decay", "0"}},
           {R"({"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0.1}})",
            "adam",
            {"optimizer_weight_decay", "0.1"}},
           {R"({"type": "adam", "params": {"torch_adam": true}})",
            "adamw",
            {"optimizer_weight_decay", ""}},
           {R"({"type": "AdamW", "params": {"weight_decay": "auto"}})",
            "adamw",
            {"optimizer_weight_decay", ""}},
           {R"({"type": "SGD", "params": {"momentum": 0.9, "nesterov": false}})",
            "sgd",
            {"optimizer_momentum", "0.9", "optimizer_weight_decay", ""}},
           {R"({"type": "SGD", "params": {"nesterov": true}})",
            "sgd",
            {"optimizer_values", "nesterov=1"}},
           {R"({"type": "Adam", "params": {"amsgrad": true, "bias_correction": false}})",
            "adamw",
            {"optimizer_values", "amsgrad=1,bias_correction=0"}},
           {R"({"type": "RMSprop", "params": {"alpha": 0.9, "momentum": 0.5, "centered": true}})",
            "rmsprop",
            {"optimizer_momentum", "0.5", "optimizer_values", "alpha=0.9,centered=1"}},
           {R"({"type": "Adagrad", "params": {"eps": 1e-8}})",
            "adagrad",
            {"optimizer_eps", "1e-8"}},
           {R"({"type": "Rprop", "params": {"maximize": true}})", "Rprop with maximize true"},
           {R"({"type": "lion", "params": {"lr": 1}})", "lion", {"optimizer_lr", "1"}},
           {R"({"type": "AdamW8bit", "params": {"min_8bit_size": 16384}})",
            "adamw",
            {"optimizer_values", "min_8bit_size=16384,states_8bit=1", "optimizer_weight_decay",
             ""}},
           {R"({"type": "Adam8bit"})",
            "adamw",
            {"optimizer_values", "states_8bit=1", "optimizer_weight_decay", "0"}},
           {R"({"type": "Muon", "params": {"muon_lr": 0.1, "adam_lr": 0.01, "ns_method": "gram",
                "betas": [0.8, 0.9], "adam_w_mode": true, "per_head_muon": false}})",
            "muon",
            {"optimizer_values", "muon_lr=0.1,adam_lr=0.01", "optimizer_betas", "0.8,0.9",
             "optimizer_weight_decay", ""}},
           {R"({"type": "Muon", "params": {"adam_w_mode": false}})", "Muon with adam_w_mode false"},
           {R"({"type": "Muon", "params": {"per_head_muon": true}})",
            "Muon with per_head_muon true"},
           {R"({"type": "Lion8bit", "params": {"lr": 1}})",
            "lion",
            {"optimizer_values", "states_8bit=1", "optimizer_lr", "1", "optimizer_betas",
             "0.9,0.99"}},
       }) {
    CAPTURE(block);
    settings::Settings settings;
    apply_deepspeed_json(parse_json(file_with("\"optimizer\": " + block), "d.json"), 4, settings);
    CHECK(settings.text("optimizer_type"_key) == type);
    CHECK(settings.source("optimizer_type"_key).where == "d.json:4");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      CAPTURE(values[i]);
      CHECK(settings.text(*settings::find_setting(values[i])) == values[i + 1]);
    }
  }
  settings::Settings settings;
  apply_deepspeed_json(
      parse_json(file_with(R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}})"),
                 "d.json"),
      4, settings);
  CHECK(settings.text("scheduler_type"_key) == "OneCycle");
  CHECK(settings.text("scheduler_values"_key) == "cycle_min_lr=0.1");
}

TEST_CASE("DeepSpeed JSON: features that the runtime lacks are passed to it, unless they are off") {
  for (const auto& [lines, expected] : std::vector<std::pair<std::string, std::string>>{
           {"\"steps_per_print\": 5, \"wandb\": {\"enabled\": true}", ""},
           {"\"amp\": {\"enabled\": false}, \"sequence_parallel_size\": 1", ""},
           {"\"data_types\": {\"grad_accum_dtype\": \"fp32\"}", ""},
           {"\"data_types\": {\"grad_accum_dtype\": \"bf16\"}", "data_types.grad_accum_dtype bf16"},
           {"\"amp\": {\"enabled\": true}, \"sparse_gradients\": 1", "amp; sparse_gradients 1"},
       }) {
    CAPTURE(lines);
    settings::Settings settings;
    apply_deepspeed_json(parse_json(file_with(lines), "d.json"), 4, settings);
    CHECK(settings.text("deepspeed_unsupported"_key) == expected);
  }
}

TEST_CASE("DeepSpeed JSON: files with one wrong key are refused") {
  struct Case {
    std::string text;
    Words parts;
  };
  for (const auto& [text, parts] : std::vector<Case>{
           {file_of("\"train_batch_size\": 8"), {"d.json: zero_optimization is missing"}},
           {file_with("\"zero_allow_untested_optimiser\": true"),
            {"d.json:4: unknown key", "did you mean \"zero_allow_untested_optimizer\"?"}},
           {file_with("\"fp16\": {\n\"enable\": true}"),
            {"d.json:5: unknown key \"enable\" in fp16", "did you mean \"enabled\"?"}},
           {file_with("\"fp16\": {\"initial_scale_power\": 1.5}"),
            {"d.json:4: fp16.initial_scale_power must be a whole number", "\"1.5\""}},
           {file_with("\"aio\": {\"queue_depth\": 0}"), {"aio.queue_depth", "1..32768"}},
           {file_with("\"aio\": 3"), {"d.json:4: aio must be an object"}},
           {file_with("\"steps_per_print\": [1]"), {"d.json:4: steps_per_print must be"}},
           {file_with("\"communication_data_type\": \"fp64\""), {"fp32, fp16 or bf16", "fp64"}},
           {file_with("\"wall_clock_breakdown\": \"perhaps\""), {"must be true or false"}},
           {file_with("\"gradient_clipping\": -1"), {"gradient_clipping must be a number"}},
           {file_with("\"train_batch_size\": 0"), {"train_batch_size", "at least 1"}},
           {file_with("\"prescale_gradients\": \"auto\""),
            {"d.json:4: prescale_gradients cannot be \"auto\""}},
           {file_with("\"optimizer\": {\"params\": {}}"), {"d.json:4: optimizer needs a type"}},
           {file_with("\"optimizer\": {\"type\": \"AdmW\"}"),
            {"optimizer.type \"AdmW\"", "did you mean \"AdamW\"?"}},
           {file_with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"learning_rate\": 1}}"),
            {"unknown parameter \"learning_rate\" of Adam"}},
           {file_with("\"optimizer\": {\"type\": \"Lion\", \"params\": {\n\"weight_decy\": 0}}"),
            {"d.json:5", "of Lion", "did you mean \"weight_decay\"?"}},
           {file_with("\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}"),
            {"optimizer.params.betas must be two numbers"}},
           {file_with("\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": \"fast\"}}"),
            {"optimizer.params.lr must be a number", "\"fast\""}},
           {file_with("\"optimizer\": {\"type\": \"SGD\", \"parameters\": {}}"),
            {"unknown key \"parameters\" in optimizer"}},
           {file_with("\"scheduler\": {\"type\": \"warmuplr\"}"), {"did you mean \"WarmupLR\"?"}},
           {file_with(
                "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 1}}"),
            {"unknown parameter \"total_num_steps\" of WarmupLR"}},
           {file_with(
                "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"exp\"}}"),
            {"warmup_type must be log or linear"}},
           {file_with("\"bf16\": {\"enabled\": true},\n\"fp16\": {\"enabled\": true}"),
            {"d.json:4: fp16 and bf16 cannot both be enabled"}},
       }) {
    CAPTURE(text);
    const std::string message = refusal(text);
    for (const std::string& part : parts) {
      CAPTURE(message);
      CHECK(contains(message, part));
    }
  }
}

TEST_CASE("DeepSpeed JSON: wrong keys of zero_optimization are refused") {
  for (const auto& [inner, part] :
       {std::pair<std::string, std::string>{"\"stage\": 4", "zero_optimization.stage must be"},
        {"\"mics_shard_size\": 2", "mics_shard_size was removed from DeepSpeed"},
        {"\"zeropp_loco_param\": {}", "zeropp_loco_param was removed"},
        {"\"offload_param\": {\"device\": \"gpu\"}", "none, cpu or nvme, got \"gpu\""},
        {"\"offload_optimizer\": {\"ratio\": 2}", "offload_optimizer.ratio must be a number 0..1"},
        {"\"overlap_comm\": \"auto\"", "overlap_comm cannot be \"auto\""},
        {"\"stage\": 3, \"compute_grad_norm\": false",
         "compute_grad_norm false needs stage 1 or 2"},
        {"\"reduce_bucket_size\": 1.5", "reduce_bucket_size must be a whole number"},
        {"\"zero_hpz_partition_size\": 0", "zero_hpz_partition_size must be an integer 1.."}}) {
    CAPTURE(inner);
    CHECK(contains(
        refusal(file_of("\"train_batch_size\": 8,\n\"zero_optimization\": {" + inner + "}")),
        part));
  }
}

TEST_CASE("DeepSpeed JSON: all faults are reported at once, and the settings stay unchanged") {
  settings::Settings settings;
  const std::string text = file_of(
      "\"zero_optimization\": {\"stage\": 3, \"stage3\": 1},\n\"gradient_clipping\": \"much\",\n"
      "\"scheduler\": {\"params\": {}}");
  const std::string message =
      test::refusal([&] { apply_deepspeed_json(parse_json(text, "d.json"), 4, settings); });
  for (const char* part : {"d.json:2: unknown key \"stage3\"", "d.json:3: gradient_clipping",
                           "d.json:4: scheduler needs a type",
                           "d.json: train_batch_size or train_micro_batch_size_per_gpu"}) {
    CHECK(contains(message, part));
  }
  CHECK_FALSE(settings.given("zero_stage"_key));
}

TEST_CASE("DeepSpeed JSON: each of the three batch sizes follows from the other two") {
  struct Case {
    std::string lines;
    std::string steps;    ///< expected accumulation steps; empty: the file is refused
    std::string refusal;  ///< expected message of a refused file
  };
  for (const auto& [lines, steps, part] : std::vector<Case>{
           {"\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2", "2", ""},
           {"\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, "
            "\"gradient_accumulation_steps\": \"auto\"",
            "2", ""},
           {"\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, "
            "\"gradient_accumulation_steps\": 2",
            "2", ""},
           {"\"train_batch_size\": 16, \"gradient_accumulation_steps\": 4", "4", ""},
           {"\"train_batch_size\": 16", "1", ""},
           {"\"train_micro_batch_size_per_gpu\": 2", "1", ""},
           {"\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3", "3", ""},
           {"\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 3", "3",
            ""},
           {"\"train_micro_batch_size_per_gpu\": \"auto\", \"train_batch_size\": \"auto\"", "1",
            ""},
           {"\"gradient_accumulation_steps\": 3", "",
            "train_batch_size or train_micro_batch_size_per_gpu is missing"},
           {"\"dump_state\": false", "",
            "train_batch_size or train_micro_batch_size_per_gpu is missing"},
           {"\"train_batch_size\": \"auto\"", "",
            "train_batch_size or train_micro_batch_size_per_gpu is missing"},
           {"\"train_batch_size\": 6", "", "d.json:2: train_batch_size 6 must be a multiple of 4"},
           {"\"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": 2", "",
            "a multiple of 2 (train_micro_batch_size_per_gpu) x 4 processes = 8"},
           {"\"train_batch_size\": 16, \"gradient_accumulation_steps\": 3", "",
            "a multiple of 3 accumulation steps x 4 processes = 12"},
           {"\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, "
            "\"gradient_accumulation_steps\": 3",
            "",
            "must be 2 (train_micro_batch_size_per_gpu) x 3 accumulation steps x 4 processes = 24"},
           // 2 to the power 62: times 4 it would overflow to 0 in 64 bits.
           {"\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 4611686018427387904", "",
            "a multiple of 4611686018427387904 (train_micro_batch_size_per_gpu) x 4 processes"},
       }) {
    CAPTURE(lines);
    const std::string text = file_of(lines + ",\n\"zero_optimization\": {}");
    settings::Settings settings;
    if (steps.empty()) {
      CHECK(contains(refusal(text), part));
    } else {
      apply_deepspeed_json(parse_json(text, "d.json"), 4, settings);
      CHECK(settings.text("gradient_accumulation_steps"_key) == steps);
    }
  }
}

TEST_CASE("DeepSpeed JSON: auto values come from flags, else from Accelerate's defaults") {
  const std::string text = file_of(
      "\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_clipping\": \"auto\", "
      "\"gradient_accumulation_steps\": \"auto\",\n\"bf16\": {\"enabled\": \"auto\"}, "
      "\"zero_optimization\": {\"stage\": \"auto\", \"offload_param\": {\"device\": \"auto\", "
      "\"nvme_path\": \"auto\"}, \"stage3_gather_16bit_weights_on_model_save\": \"auto\", "
      "\"reduce_bucket_size\": \"auto\"}");
  settings::Settings plain;
  apply_deepspeed_json(parse_json(text, "d.json"), 4, plain);
  settings::Settings flags =
      settings_with({{"gradient_clipping", "2.0", "--gradient_clipping"},
                     {"gradient_accumulation_steps", "3", "--gradient_…"},
                     {"zero_stage", "3", "--zero_stage"},
                     {"offload_param_device", "cpu", "--offload_param_device"},
                     {"zero3_save_16bit_model", "true", "--zero3_save_16bit_model"},
                     {"mixed_precision", "bf16", "--mixed_precision"}});
  apply_deepspeed_json(parse_json(text, "d.json"), 4, flags);
  for (const auto& [key, by_default, by_flag] : {std::tuple{"gradient_clipping", "1.0", "2.0"},
                                                 {"gradient_accumulation_steps", "1", "3"},
                                                 {"zero_stage", "2", "3"},
                                                 {"offload_param_device", "none", "cpu"},
                                                 {"zero3_save_16bit_model", "false", "true"},
                                                 {"mixed_precision", "no", "bf16"}}) {
    CAPTURE(key);
    CHECK(plain.text(*settings::find_setting(key)) == by_default);
    CHECK(flags.text(*settings::find_setting(key)) == by_flag);
  }
  CHECK(plain.source("gradient_clipping"_key) ==
        settings::Source{settings::Source::Kind::deepspeed_file, "d.json:2"});
}

TEST_CASE("DeepSpeed JSON: a contradicting flag is refused with both values and places") {
  struct Case {
    Given flag;
    std::string line;
    std::string expected;  ///< expected message; empty: file and flag agree
  };
  for (const auto& [flag, line, expected] : std::vector<Case>{
           {{"gradient_clipping", "2.0", "--gradient_clipping"}, "\"gradient_clipping\": 2", ""},
           {{"gradient_clipping", "2.0", "--gradient_clipping"},
            "\"gradient_clipping\": 1.0",
            "d.json:4: gradient_clipping 1.0 contradicts gradient_clipping 2.0 "
            "(--gradient_clipping)"},
           {{"zero_stage", "3", "--zero_stage"},
            "\"dump_state\": false",
            "d.json:2: zero_optimization.stage 2 contradicts zero_stage 3 (--zero_stage)"},
           {{"mixed_precision", "bf16", "--mixed_precision"},
            "\"fp16\": {\"enabled\": true}",
            "fp16.enabled: fp16 contradicts mixed_precision bf16 (--mixed_precision)"},
           {{"mixed_precision", "no", "--mixed_precision"},
            "\"bf16\": {\"enabled\": true}",
            "bf16.enabled: bf16 contradicts mixed_precision no (--mixed_precision)"},
           {{"mixed_precision", "bf16", "--mixed_precision"},
            "\"bfloat16\": {\"enabled\": false}",
            "bf16.enabled false contradicts mixed_precision bf16 (--mixed_precision)"},
           {{"mixed_precision", "fp16", "--mixed_precision"},
            "\"fp16\": {\"enabled\": false}",
            "fp16.enabled false contradicts mixed_precision fp16"},
           {{"mixed_precision", "fp8", "--mixed_precision"}, "\"bf16\": {\"enabled\": true}", ""},
           {{"mixed_precision", "bf16", "--mixed_precision"}, "\"fp16\": {\"enabled\": false}", ""},
       }) {
    CAPTURE(line);
    const std::string text = file_with(line);
    const std::string message = refusal(text, settings_with({flag}));
    CAPTURE(message);
    CHECK((expected.empty() ? message.empty() : contains(message, expected)));
  }
}

TEST_CASE(
    "DeepSpeed JSON: YAML settings that Accelerate's plugin refuses next to the file are refused") {
  const Given named{"deepspeed_config_file", "d.json", "c.yaml:3", settings::Source::Kind::file};
  for (const auto& [key, text, path] :
       {std::tuple{"gradient_accumulation_steps", "2", "as gradient_accumulation_steps"},
        {"gradient_clipping", "1.0", "as gradient_clipping"},
        {"zero_stage", "2", "as zero_optimization.stage"},
        {"offload_optimizer_device", "none", "as zero_optimization.offload_optimizer.device"},
        {"offload_param_device", "none", "as zero_optimization.offload_param.device"},
        {"offload_optimizer_nvme_path", "/n", "as zero_optimization.offload_optimizer.nvme_path"},
        {"offload_param_nvme_path", "/n", "as zero_optimization.offload_param.nvme_path"},
        {"zero3_save_16bit_model", "false",
         "as zero_optimization.stage3_gather_16bit_weights_on_model_save"},
        {"mixed_precision", "no", "as fp16.enabled or bf16.enabled"}}) {
    CAPTURE(key);
    const std::string message =
        refusal(file_with(""),
                settings_with({named, {key, text, "c.yaml:7", settings::Source::Kind::file}}));
    CHECK(contains(message, "c.yaml:7: " + std::string(key) + " " + text +
                                " must not be given together with deepspeed_config_file "
                                "(c.yaml:3)"));
    CHECK(contains(message, path));
  }
  const Given wanted{"zero3_init_flag", "true", "c.yaml:7", settings::Source::Kind::file};
  CHECK(refusal(file_with(""), settings_with({named, wanted})).empty());
}

TEST_CASE("DeepSpeed JSON: old names are accepted with a notice") {
  settings::Settings settings;
  const DeepSpeedFile file = apply_deepspeed_json(
      parse_json(file_of("\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 3,\n"
                         "\"cpu_offload\": true, \"cpu_offload_param\": false,\n"
                         "\"cpu_offload_use_pin_memory\": false,\n"
                         "\"stage3_gather_fp16_weights_on_model_save\": true}"),
                 "d.json"),
      4, settings);
  CHECK(settings.text("offload_optimizer_device"_key) == "cpu");
  CHECK(settings.text("offload_param_device"_key) == "none");
  CHECK(settings.text("zero3_save_16bit_model"_key) == "true");
  CHECK(paths(file.left_to_program) ==
        Words{"train_batch_size", "zero_optimization.offload_optimizer.pin_memory"});
  REQUIRE(file.notices.size() == 5);
  CHECK(file.notices[0] ==
        "d.json:3: zero_optimization.cpu_offload is read as "
        "zero_optimization.offload_optimizer.device, its current name");
}

}  // namespace
}  // namespace acc::documents
