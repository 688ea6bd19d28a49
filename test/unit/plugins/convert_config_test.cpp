// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/convert_config.hpp"

#include "acc/base/error.hpp"
#include "acc/documents/accelerate_config.hpp"
#include "acc/documents/deepspeed_json.hpp"
#include "acc/documents/document_writer.hpp"
#include "acc/settings/environment.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

namespace acc::documents {
namespace {

namespace fs = std::filesystem;
using test::contains;
using Words = std::vector<std::string>;

const std::string kFsdp = "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\n";
const std::string kDeepSpeed = "distributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 2\n";

ConversionInput input_of(const std::string& yaml, const std::string& json = "") {
  ConversionInput input{parse_yaml(yaml, "c.yaml"), std::nullopt, 0, "new_deepspeed.json"};
  if (!json.empty()) {
    input.deepspeed_file = parse_json(json, "d.json");
  }
  return input;
}

/// Returns a result as the next conversion would read it from disk.
ConversionInput reread(const Conversion& conversion) {
  return input_of(to_yaml(conversion.document),
                  conversion.deepspeed_file ? to_json(*conversion.deepspeed_file) : "");
}

Conversion convert(const std::string& yaml, ConfigForm form) {
  return convert_config(input_of(yaml), form);
}

std::string block(const Conversion& conversion, const std::string& name) {
  const Node* node = conversion.document.find(name);
  return node == nullptr ? "" : to_yaml(*node);
}

bool says(const Conversion& conversion, const std::string& part) {
  return std::ranges::any_of(conversion.remarks,
                             [&](const std::string& line) { return contains(line, part); });
}

std::string refusal(const ConversionInput& input, ConfigForm form) {
  return test::refusal([&] { return convert_config(input, form); });
}

/// Returns the sharding that workers would use with a configuration.
settings::ShardingSettings sharding_of(const ConversionInput& input, int world_size) {
  settings::Settings settings;
  const AccelerateConfig config = apply_accelerate_config(input.document, settings);
  if (input.deepspeed_file) {
    apply_deepspeed_json(*input.deepspeed_file, world_size, settings);
  }
  return settings::sharding_settings(
      settings, config.distributed_type == "FSDP" ? "fsdp" : "deepspeed", world_size);
}

/// Returns the keys whose values differ; "something else" for a field that is not listed here.
Words differing_keys(const settings::ShardingSettings& a, settings::ShardingSettings b) {
  Words keys;
  const auto compare = [&](const std::string& key, auto field) {
    if (a.*field != b.*field) {
      keys.push_back(key);
      b.*field = a.*field;
    }
  };
  compare("zero_stage", &settings::ShardingSettings::strategy);
  compare("fsdp_auto_wrap_policy", &settings::ShardingSettings::wrap_policy);
  compare("fsdp_transformer_layer_cls_to_wrap",
          &settings::ShardingSettings::transformer_layer_classes);
  compare("fsdp_backward_prefetch", &settings::ShardingSettings::backward_prefetch);
  compare("fsdp_forward_prefetch", &settings::ShardingSettings::forward_prefetch);
  compare("fsdp_cpu_ram_efficient_loading", &settings::ShardingSettings::cpu_ram_efficient_loading);
  if (!(a == b)) {
    keys.emplace_back("something else");
  }
  return keys;
}

ConversionInput config_file(const std::string& name) {
  const fs::path folder = fs::path(ACC_SOURCE_DIR) / "configs";
  ConversionInput input{load_document(folder / (name + ".yaml")), std::nullopt, 0,
                        "new_deepspeed.json"};
  const std::string named = named_deepspeed_file(input.document);
  if (!named.empty()) {
    input.deepspeed_file = load_document(folder / named);
  }
  return input;
}

TEST_CASE(
    "convert-config: every file of configs/ survives a round trip, or a warning names the "
    "difference") {
  const Words units = {"fsdp_backward_prefetch", "fsdp_cpu_ram_efficient_loading"};
  struct Case {
    std::string name;
    Words differing;
  };
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(ACC_SOURCE_DIR) / "configs")) {
    files += entry.path().extension() == ".yaml" ? 1 : 0;
  }
  const std::vector<Case> cases = {
      {"fsdp_full_shard", {"fsdp_forward_prefetch"}},
      {"fsdp_shard_grad_op", units},
      {"fsdp_no_shard", units},
      {"fsdp_hybrid_shard", {"fsdp_forward_prefetch"}},
      {"fsdp_hybrid_shard_zero2",
       {"zero_stage", "fsdp_backward_prefetch", "fsdp_cpu_ram_efficient_loading"}},
      {"zero0", {}},
      {"zero1", {"zero_stage"}},
      {"zero2", {}},
      {"zero3", {}},
      {"zero3_hpz", {}},
  };
  CHECK(cases.size() == files);
  for (const auto& [name, differing] : cases) {
    CAPTURE(name);
    const ConversionInput original = config_file(name);
    const bool is_fsdp = opposite_form(original.document) == ConfigForm::deepspeed;
    const Conversion there = convert_config(original, opposite_form(original.document));
    const Conversion back =
        convert_config(reread(there), is_fsdp ? ConfigForm::fsdp : ConfigForm::deepspeed);
    const Words found = differing_keys(sharding_of(original, 4), sharding_of(reread(back), 4));
    CHECK(found == differing);
    for (const std::string& key : found) {
      CAPTURE(key);
      CHECK((says(there, key) || says(back, key) ||
             (key == "zero_stage" && says(there, "fsdp_sharding_strategy"))));
    }
    CHECK(back.document.find("num_processes")->text == "4");
  }
}

TEST_CASE("convert-config: a strategy becomes the equivalent stage") {
  struct Case {
    std::string fsdp;
    std::string stage;
    int hpz;  ///< 0: no separate DeepSpeed file
    std::string remark;
  };
  for (const auto& [fsdp, stage, hpz, remark] : std::vector<Case>{
           {"  fsdp_sharding_strategy: NO_SHARD\n", "0", 0, ""},
           {"  fsdp_sharding_strategy: SHARD_GRAD_OP\n", "2", 0, "c.yaml:5: "},
           {"  fsdp_sharding_strategy: 1\n", "3", 0, ""},
           {"  sharding_strategy: full_shard\n", "3", 0, ""},
           {"  fsdp_reshard_after_forward: SHARD_GRAD_OP\n", "2", 0,
            "is read as fsdp_sharding_strategy"},
           {"  fsdp_reshard_after_forward: FULL_SHARD\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
            "2", 0, "fsdp_reshard_after_forward FULL_SHARD has no effect with FSDP 1"},
           {"  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n", "2", 0,
            "fsdp_reshard_after_forward false becomes stage 2"},
           {"  fsdp_version: 2\n", "3", 0, ""},
           {"  fsdp_sharding_strategy: HYBRID_SHARD\n", "3", 4,
            "HYBRID_SHARD becomes stage 3 with zero_hpz_partition_size 4"},
           {"  fsdp_sharding_strategy: HYBRID_SHARD_ZERO2\n", "2", 0, "has no counterpart"},
           {"  fsdp_version: 2\n  fsdp_reshard_after_forward: 2\n", "3", 2,
            "becomes zero_hpz_partition_size 2"},
           {"  fsdp_version: 2\nparallelism_config:\n  parallelism_config_dp_shard_size: 4\n"
            "  parallelism_config_dp_replicate_size: 2\n",
            "3", 4, "zero_hpz_partition_size 4"},
       }) {
    CAPTURE(fsdp);
    const Conversion result = convert(kFsdp + "fsdp_config:\n" + fsdp, ConfigForm::deepspeed);
    CHECK(result.document.find("distributed_type")->text == "DEEPSPEED");
    CHECK(result.document.find("fsdp_config") == nullptr);
    CHECK(result.document.find("parallelism_config") == nullptr);
    const settings::ShardingSettings sharding = sharding_of(reread(result), 8);
    CHECK(static_cast<int>(sharding.strategy) == std::stoi(stage));
    CHECK(result.deepspeed_file.has_value() == (hpz > 0));
    CHECK(sharding.hpz_partition_size == std::max(1, hpz));
    CHECK(says(result, remark));
  }
}

TEST_CASE("convert-config: a strategy given under both of its names causes no warning") {
  const Conversion result = convert(kFsdp +
                                        "fsdp_config:\n  fsdp_reshard_after_forward: NO_SHARD\n"
                                        "  fsdp_sharding_strategy: NO_SHARD\n",
                                    ConfigForm::deepspeed);
  CHECK(result.document.find("deepspeed_config")->find("zero_stage")->text == "0");
  CHECK_FALSE(says(result, "fsdp_reshard_after_forward"));
}

TEST_CASE("convert-config: a stage becomes the equivalent strategy") {
  struct Case {
    std::string stage;
    std::string fsdp, fsdp2;
  };
  for (const auto& [stage, fsdp, fsdp2] :
       {Case{"0", "NO_SHARD", "false"}, Case{"1", "SHARD_GRAD_OP", "false"},
        Case{"2", "SHARD_GRAD_OP", "false"}, Case{"3", "FULL_SHARD", "true"}}) {
    CAPTURE(stage);
    const std::string yaml = kDeepSpeed + "deepspeed_config:\n  zero_stage: " + stage + "\n";
    const Conversion one = convert(yaml, ConfigForm::fsdp);
    CHECK(one.document.find("fsdp_config")->find("fsdp_sharding_strategy")->text == fsdp);
    CHECK(one.document.find("deepspeed_config") == nullptr);
    CHECK(says(one, "zero_stage " + stage) == (stage == "1" || stage == "2"));
    const Conversion two = convert(yaml, ConfigForm::fsdp2);
    CHECK(two.document.find("fsdp_config")->find("fsdp_reshard_after_forward")->text == fsdp2);
    CHECK(two.document.find("fsdp_config")->find("fsdp_sharding_strategy") == nullptr);
    CHECK(says(two, "zero_stage " + stage) == (stage != "3"));
  }
}

TEST_CASE("convert-config: hpZ becomes HYBRID_SHARD with a warning about the difference") {
  const std::string yaml =
      kDeepSpeed + "deepspeed_config:\n  deepspeed_config_file: d.json\n  zero3_init_flag: true\n";
  struct Case {
    std::string size;
    ConfigForm form;
    std::string groups;  ///< expected parallelism_config
  };
  const std::string twos =
      "parallelism_config_dp_replicate_size: 4\nparallelism_config_dp_shard_size: 2\n";
  const std::string fours =
      "parallelism_config_dp_replicate_size: 2\nparallelism_config_dp_shard_size: 4\n";
  for (const auto& [size, form, groups] :
       {Case{"4", ConfigForm::fsdp, ""}, Case{"2", ConfigForm::fsdp, twos},
        Case{"4", ConfigForm::fsdp2, fours}, Case{"2", ConfigForm::fsdp2, twos},
        Case{"8", ConfigForm::fsdp2, ""}}) {
    CAPTURE(size);
    const Conversion result = convert_config(
        input_of(yaml,
                 "{\"train_micro_batch_size_per_gpu\": \"auto\", \"zero_optimization\": "
                 "{\"stage\": 3, \"zero_hpz_partition_size\": " +
                     size + "}}"),
        form);
    CHECK(block(result, "parallelism_config") == groups);
    CHECK(says(result, "d.json:1: zero_optimization.zero_hpz_partition_size " + size +
                           " becomes HYBRID_SHARD"));
    const Node* fsdp = result.document.find("fsdp_config");
    if (form == ConfigForm::fsdp) {
      CHECK(fsdp->find("fsdp_sharding_strategy")->text == "HYBRID_SHARD");
    }
    const settings::ShardingSettings sharding = sharding_of(reread(result), 8);
    CHECK(sharding.strategy ==
          (size == "8" ? settings::Strategy::full_shard : settings::Strategy::hybrid_shard));
  }
}

TEST_CASE("convert-config: offload, checkpoints and loading, from FSDP to DeepSpeed") {
  const Conversion result = convert(kFsdp +
                                        "mixed_precision: bf16\nfsdp_config:\n"
                                        "  fsdp_offload_params: true\n"
                                        "  fsdp_state_dict_type: FULL_STATE_DICT\n"
                                        "  fsdp_cpu_ram_efficient_loading: false\n"
                                        "  fsdp_use_orig_params: false\n"
                                        "  fsdp_activation_checkpointing: true\n"
                                        "  fsdp_ignored_modules: .*norm\n",
                                    ConfigForm::deepspeed);
  CHECK(block(result, "deepspeed_config") ==
        "offload_optimizer_device: cpu\noffload_param_device: cpu\nzero3_init_flag: false\n"
        "zero3_save_16bit_model: true\nzero_stage: 3\n");
  CHECK(result.document.find("mixed_precision")->text == "bf16");
  for (const char* part :
       {"c.yaml:6: fsdp_offload_params true becomes both",
        "c.yaml:7: fsdp_state_dict_type FULL_STATE_DICT becomes zero3_save_16bit_model",
        "c.yaml:4: mixed_precision bf16 means the same",
        "c.yaml:9: fsdp_use_orig_params false has no counterpart",
        "c.yaml:10: fsdp_activation_checkpointing true has no counterpart",
        "c.yaml:11: fsdp_ignored_modules .*norm has no counterpart",
        "gradient_clipping is not given"}) {
    CAPTURE(part);
    CHECK(says(result, part));
  }
  const std::string stage_2 =
      kFsdp + "fsdp_config:\n  fsdp_offload_params: true\n  fsdp_sharding_strategy: ";
  CHECK(says(convert(stage_2 + "SHARD_GRAD_OP\n", ConfigForm::deepspeed),
             "becomes offload_optimizer_device cpu only"));
  CHECK(says(convert(stage_2 + "NO_SHARD\n", ConfigForm::deepspeed),
             "fsdp_offload_params true has no counterpart with stage 0"));
}

TEST_CASE("convert-config: keys of a DeepSpeed file without a counterpart are listed") {
  ConversionInput input{parse_json(R"({"train_batch_size": 32,
"gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
"optimizer": {"type": "AdamW"}, "bf16": {"enabled": true},
"zero_optimization": {"stage": 3, "reduce_bucket_size": 1e6, "overlap_comm": true,
"offload_optimizer": {"device": "nvme", "nvme_path": "/n"},
"zero_quantized_weights": true}})",
                                   "d.json"),
                        std::nullopt, 0, ""};
  const Conversion result = convert_config(input, opposite_form(input.document));
  CHECK(result.document.find("mixed_precision")->text == "bf16");
  CHECK(result.document.find("fsdp_config")->find("fsdp_offload_params")->text == "true");
  CHECK(block(result, "deepspeed_config") ==
        "gradient_accumulation_steps: 4\ngradient_clipping: 0.5\nquantized_weights: true\n");
  for (const char* part :
       {"d.json:1: train_batch_size 32 has no counterpart",
        "d.json:2: gradient_accumulation_steps 4 stays under deepspeed_config",
        "d.json:2: gradient_clipping 0.5 stays", "d.json:3: optimizer has no counterpart",
        "d.json:4: zero_optimization.reduce_bucket_size 1e6 has no counterpart",
        "d.json:5: zero_optimization.offload_optimizer.device nvme becomes fsdp_offload_params",
        "d.json:5: zero_optimization.offload_optimizer.device nvme becomes host memory",
        "d.json:5: zero_optimization.offload_optimizer.nvme_path /n has no counterpart",
        "d.json:6: zero_optimization.zero_quantized_weights true stays under deepspeed_config"}) {
    CAPTURE(part);
    CHECK(says(result, part));
  }
  CHECK_FALSE(says(result, "overlap_comm"));
  CHECK(sharding_of(reread(result), 1).gradient_clipping == 0.5);
}

TEST_CASE("convert-config: keys that do not concern sharding are kept") {
  const std::string others =
      "debug: true\nmachine_rank: 1\nmain_process_ip: 10.0.0.1\nmain_process_port: 29511\n"
      "rdzv_backend: static\nsame_network: true\nuse_cpu: false\ndowncast_bf16: 'no'\n"
      "dynamo_config:\n  dynamo_backend: INDUCTOR\n";
  const Conversion result = convert(kFsdp + others, ConfigForm::deepspeed);
  const Document original = parse_yaml(kFsdp + others, "c.yaml");
  for (const auto& [key, node] : original.root.entries) {
    CAPTURE(key);
    const Node* kept = result.document.find(key);
    REQUIRE(kept != nullptr);
    CHECK((kept->text == node.text || key == "distributed_type"));
  }
  CHECK(says(result, "dynamo_backend INDUCTOR has no counterpart"));
}

TEST_CASE("convert-config: from DeepSpeed's YAML to its JSON and back to a YAML that names it") {
  const std::string yaml = kDeepSpeed +
                           "mixed_precision: fp16\ndeepspeed_config:\n  zero_stage: 3\n"
                           "  gradient_accumulation_steps: 2\n  offload_param_device: cpu\n"
                           "  zero3_save_16bit_model: true\n";
  const Conversion json = convert(yaml, ConfigForm::deepspeed_json);
  CHECK(to_json(json.document) == R"({
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": 2,
  "fp16": {
    "enabled": true,
    "auto_cast": true
  },
  "zero_optimization": {
    "stage": 3,
    "offload_param": {
      "device": "cpu"
    },
    "stage3_gather_16bit_weights_on_model_save": true
  }
}
)");
  CHECK(says(json, "pass these to the launcher: num_processes, num_machines"));
  CHECK(says(json, "gradient_clipping is not given: DeepSpeed then clips at 1.0"));
  ConversionInput own{parse_json(to_json(json.document), "conf/d.json"), std::nullopt, 0, ""};
  CHECK(block(convert_config(own, ConfigForm::deepspeed), "deepspeed_config") ==
        "deepspeed_config_file: conf/d.json\nzero3_init_flag: true\n");
  CHECK(sharding_of(input_of(to_yaml(convert_config(own, ConfigForm::deepspeed).document),
                             to_json(json.document)),
                    8) == sharding_of(input_of(yaml), 8));
}

TEST_CASE("convert-config: between the versions of FSDP") {
  const Conversion two = convert(kFsdp +
                                     "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
                                     "  fsdp_state_dict_type: LOCAL_STATE_DICT\n"
                                     "  fsdp_use_orig_params: false\n",
                                 ConfigForm::fsdp2);
  CHECK(block(two, "parallelism_config") ==
        "parallelism_config_dp_replicate_size: 2\nparallelism_config_dp_shard_size: 4\n");
  CHECK(two.document.find("fsdp_config")->find("fsdp_state_dict_type")->text ==
        "SHARDED_STATE_DICT");
  CHECK(says(two, "LOCAL_STATE_DICT becomes SHARDED_STATE_DICT"));
  CHECK(says(two, "fsdp_use_orig_params false has no counterpart"));
  const Conversion one = convert_config(reread(two), ConfigForm::fsdp);
  CHECK(one.document.find("fsdp_config")->find("fsdp_sharding_strategy")->text == "HYBRID_SHARD");
  CHECK(one.document.find("parallelism_config") == nullptr);
}

TEST_CASE("convert-config: a file that has the target form already is not changed") {
  const std::string yaml = kFsdp + "fsdp_config:\n  fsdp_offload_params: true\n";
  const Conversion result = convert(yaml, ConfigForm::fsdp);
  CHECK(to_yaml(result.document, KeyOrder::as_given) == yaml);
  CHECK(says(result, "is in this form already"));
}

TEST_CASE("convert-config: input that cannot be converted is refused") {
  CHECK(contains(
      refusal(input_of("distributed_type: MULTI_GPU\nnum_processes: 2\n"), ConfigForm::fsdp),
      "neither FSDP nor DEEPSPEED"));
  CHECK(contains(refusal(input_of("distributed_type: FSDP\nfsdp_config:\n"
                                  "  fsdp_sharding_strategy: HYBRID_SHARD\n"),
                         ConfigForm::deepspeed),
                 "c.yaml:3: fsdp_sharding_strategy HYBRID_SHARD depends on the number of GPUs per "
                 "machine; give --gpus_per_machine"));
  CHECK(contains(refusal(input_of(kFsdp + "fsdp_config:\n  fsdp_offlod_params: true\n"),
                         ConfigForm::deepspeed),
                 "did you mean \"fsdp_offload_params\"?"));
  CHECK_THROWS_WITH_AS(config_form_named("deepsped"),
                       "--to must be fsdp, fsdp2, deepspeed or deepspeed-json, got \"deepsped\"; "
                       "did you mean \"deepspeed\"?",
                       Error);
}

}  // namespace
}  // namespace acc::documents
