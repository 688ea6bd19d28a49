// SPDX-License-Identifier: Apache-2.0
// No sharding setting changes the results of a training. Each setting is compared with the results
// of PyTorch, with ranks that share gathered memory, with ranks that copy, and on two machines.
#include "parity_gpt.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdint>

namespace {

using namespace acc::test;
using Words = std::vector<std::string>;

constexpr const char* kSteps = "6";

const std::map<std::string, std::string> kCopies = {{"ACC_SHM_GATHER", "copy"}};

/// Runs a training and returns the metrics of its steps.
std::vector<nlohmann::json> steps_of(const std::string& config, Layout layout, const Words& flags,
                                     const Words& program,
                                     const std::map<std::string, std::string>& variables = {}) {
  const TemporaryFolder folder;
  const std::string metrics = folder.path() / "metrics.jsonl";
  Words more = {"--steps", kSteps, "--metrics", metrics};
  more.insert(more.end(), program.begin(), program.end());
  train(config, layout, more, flags, variables);
  return read_metrics(metrics);
}

std::string text(const Words& words) {
  std::string all;
  for (const std::string& word : words) {
    all += word + " ";
  }
  return all;
}

/// Flags of a mode, and the groups on which they are tested.
struct Setting {
  Words flags;
  Words program = {};
  std::vector<std::string> configs = {"fsdp_full_shard"};
};

const Words kAccumulate = {"--gradient_accumulation_steps", "2"};

const std::vector<Setting> kSettings = {
    {.flags = {"--fsdp_activation_checkpointing", "true"},
     .configs = {"fsdp_full_shard", "fsdp_shard_grad_op", "fsdp_no_shard"}},
    {.flags = {"--fsdp_version", "2", "--fsdp_activation_checkpointing", "true",
               "--fsdp_activation_checkpointing_offload", "true"}},
    {.flags = {"--fsdp_auto_wrap_policy", "NO_WRAP"}},
    {.flags = {"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "20000"}},
    {.flags = {"--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"}},
    {.flags = {"--fsdp_backward_prefetch", "BACKWARD_POST"}},
    {.flags = {"--fsdp_backward_prefetch", "NO_PREFETCH", "--fsdp_forward_prefetch", "true"}},
    {.flags = {"--fsdp_offload_params", "true"}},
    {.flags = {"--fsdp_version", "2", "--fsdp_reshard_after_forward", "2"}},
    {.flags = {"--offload_optimizer_device", "cpu"}, .configs = {"zero1", "zero2", "zero3"}},
    {.flags = {"--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"},
     .configs = {"zero3"}},
    {.flags = kAccumulate,
     .configs = {"fsdp_full_shard", "fsdp_no_shard", "zero1", "zero2", "zero3"}},
    {.flags = kAccumulate,
     .program = {"--no_sync"},
     .configs = {"fsdp_full_shard", "fsdp_shard_grad_op", "fsdp_no_shard", "zero1"}},
};

void check(const Setting& setting) {
  for (const std::string& config : setting.configs) {
    CAPTURE(config);
    CAPTURE(text(setting.flags));
    check_losses(steps_of(config, {2, 1}, setting.flags, setting.program));
    check_losses(steps_of(config, {4, 1}, setting.flags, setting.program, kCopies));
  }
}

/// Returns the metrics of rank 0's last step.
nlohmann::json last_rank(const std::vector<nlohmann::json>& steps) {
  return steps.back().at("ranks").at(0);
}

}  // namespace

TEST_CASE("parity holds under every setting") {
  for (const Setting& setting : kSettings) {
    check(setting);
  }
}

TEST_CASE("parity holds under settings that change the communication between machines") {
  for (const Setting& setting :
       {Setting{{"--fsdp_activation_checkpointing", "true"}},
        Setting{{"--fsdp_auto_wrap_policy", "NO_WRAP"}}, Setting{{"--fsdp_offload_params", "true"}},
        Setting{kAccumulate}, Setting{kAccumulate, {"--no_sync"}}}) {
    CAPTURE(text(setting.flags));
    check_losses(steps_of("fsdp_full_shard", {4, 2}, setting.flags, setting.program));
  }
}

TEST_CASE("a single rank computes the same") {
  for (const Words& flags : {Words{"--fsdp_activation_checkpointing", "true"},
                             Words{"--fsdp_auto_wrap_policy", "NO_WRAP"}}) {
    CAPTURE(text(flags));
    check_losses(steps_of("fsdp_full_shard", {1, 1}, flags, {}));
  }
}

TEST_CASE(
    "activation checkpointing: bitwise equal, activations of one block only, no additional "
    "gather") {
  for (const char* config : {"fsdp_full_shard", "fsdp_shard_grad_op"}) {
    CAPTURE(config);
    const auto plain = steps_of(config, {2, 1}, {}, {}, kCopies);
    const auto checkpointed =
        steps_of(config, {2, 1}, {"--fsdp_activation_checkpointing", "true"}, {}, kCopies);
    for (std::size_t step = 0; step < plain.size(); ++step) {
      CHECK(checkpointed[step].at("loss") == plain[step].at("loss"));
      CHECK(checkpointed[step].at("grad_norm") == plain[step].at("grad_norm"));
    }
    const auto before = last_rank(plain);
    const auto after = last_rank(checkpointed);
    CHECK(after.at("gather_calls") == before.at("gather_calls"));
    CHECK(after.at("gathered_elements") == before.at("gathered_elements"));
    // 4 sequences of 64 tokens, 64 channels C, 4 heads H, 2 layers: 10 C + H + 4 floats per token
    // and layer. With checkpointing, those of one layer and the input of each layer are kept.
    constexpr std::int64_t kTokens = 4 * 64;
    CHECK(before.at("activation_bytes").get<std::int64_t>() -
              after.at("activation_bytes").get<std::int64_t>() ==
          4 * kTokens * (10 * 64 + 4 + 4));
    CHECK(before.at("kept_bytes") == 0);
    CHECK(after.at("kept_bytes") == 2 * 4 * kTokens * 64);
  }
}

TEST_CASE("no_sync: gradients are reduced once per step") {
  const Words flags = {"--gradient_accumulation_steps", "4"};
  const auto often = last_rank(steps_of("fsdp_full_shard", {2, 1}, flags, {}));
  const auto once = last_rank(steps_of("fsdp_full_shard", {2, 1}, flags, {"--no_sync"}));
  CHECK(often.at("reduce_calls").get<int>() == 4 * once.at("reduce_calls").get<int>());
}

TEST_CASE("the learning rate follows its schedule, also after resuming from a checkpoint") {
  const TemporaryFolder folder;
  const std::string metrics = folder.path() / "metrics.jsonl";
  const std::string checkpoint = folder.path() / "checkpoint";
  const Words schedule = {"--lr_schedule", "linear", "--warmup", "2", "--metrics", metrics};
  const auto run = [&](Words more) {
    more.insert(more.end(), schedule.begin(), schedule.end());
    train("fsdp_full_shard", {2, 1}, more);
  };
  run({"--steps", "6"});
  const std::vector<double> expected = {0.0, 0.5e-3, 1e-3, 0.75e-3, 0.5e-3, 0.25e-3};
  const auto steps = read_metrics(metrics);
  REQUIRE(steps.size() == expected.size());
  for (std::size_t step = 0; step < steps.size(); ++step) {
    CHECK(steps[step].at("lr").get<double>() == doctest::Approx(expected[step]));
  }
  run({"--steps", "4", "--save", checkpoint});
  run({"--steps", "6", "--resume", checkpoint});
  const auto all = read_metrics(metrics);  // 4 steps, and those of the resumed run
  REQUIRE(all.size() == expected.size());
  CHECK(all[4].at("lr").get<double>() == doctest::Approx(expected[4]));
  CHECK(all[5].at("lr").get<double>() == doctest::Approx(expected[5]));
}

TEST_CASE("--clip_value bounds each element of the gradient") {
  const auto plain = steps_of("zero2", {2, 1}, {}, {});
  const auto clipped = steps_of("zero2", {2, 1}, {}, {"--clip_value", "1e-11"});
  const auto fall = [](const auto& steps) {
    return steps.front().at("loss").template get<double>() -
           steps.back().at("loss").template get<double>();
  };
  CHECK(fall(plain) > 0.05);
  CHECK(fall(clipped) < 0.02 * fall(plain));  // far below AdamW's epsilon
}

TEST_CASE("the optimizer of a DeepSpeed file is used, and conflicting flags are an error") {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "deepspeed.json";
  const std::string metrics = folder.path() / "metrics.jsonl";
  std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": "auto",
      "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8,
                                                "weight_decay": 0.1}}})";
  Words line = command("zero2", {2, 1}, 0, "", {"--steps", kSteps, "--metrics", metrics});
  const auto config = std::find(line.begin(), line.end(), "--config_file");
  *config = "--deepspeed_config_file";
  *(config + 1) = file;
  line.insert(line.begin() + 1, "--use_deepspeed");
  Program refused(line);
  CHECK(refused.wait() == 2);
  CHECK(refused.err().find("--lr is given, but the DeepSpeed file") != std::string::npos);
  for (const char* flag : {"--lr", "--betas", "--eps", "--weight_decay"}) {
    const auto found = std::find(line.begin(), line.end(), flag);
    line.erase(found, found + 2);
  }
  Program taken(line);
  const int status = taken.wait();
  CAPTURE(taken.err());
  REQUIRE(status == 0);
  check_losses(read_metrics(metrics));
}
