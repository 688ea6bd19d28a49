// No setting of how a training is sharded changes what it computes: each against the numbers of
// real PyTorch, on groups whose ranks share the gathered memory, that copy, and of two machines.
#include "parity_gpt.hpp"
#include "support/temporary_folder.hpp"

namespace {

using namespace acc::test;
using Words = std::vector<std::string>;

constexpr const char* kSteps = "6";

const std::map<std::string, std::string> kCopies = {{"ACC_SHM_GATHER", "copy"}};

/// Metrics of some steps.
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

/// Flags of a mode that switch something, and where it is tried.
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
    {.flags = {"--offload_optimizer_device", "cpu"}, .configs = {"zero1", "zero2", "zero3"}},
    {.flags = {"--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"},
     .configs = {"zero3"}},
    {.flags = kAccumulate,
     .configs = {"fsdp_full_shard", "fsdp_no_shard", "zero1", "zero2", "zero3"}},
};

void check(const Setting& setting) {
  for (const std::string& config : setting.configs) {
    CAPTURE(config);
    CAPTURE(text(setting.flags));
    check_losses(steps_of(config, {2, 1}, setting.flags, setting.program));
    check_losses(steps_of(config, {4, 1}, setting.flags, setting.program, kCopies));
  }
}

/// What rank 0 told of its last step.
nlohmann::json last_rank(const std::vector<nlohmann::json>& steps) {
  return steps.back().at("ranks").at(0);
}

}  // namespace

TEST_CASE("parity holds under every setting") {
  for (const Setting& setting : kSettings) {
    check(setting);
  }
}

TEST_CASE("parity holds under settings that change what travels between machines") {
  for (const Setting& setting :
       {Setting{{"--fsdp_activation_checkpointing", "true"}},
        Setting{{"--fsdp_auto_wrap_policy", "NO_WRAP"}}, Setting{{"--fsdp_offload_params", "true"}},
        Setting{kAccumulate}}) {
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
    "activation checkpointing: the same bits, a set of activations for all blocks, no gather "
    "more") {
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
    // 4 sequences of 64 tokens, 64 channels, 4 heads, 2 layers: 10 C + H + 4 floats a token and
    // layer, of which one layer's stay, and each layer's input.
    constexpr std::int64_t kTokens = 4 * 64;
    CHECK(before.at("activation_bytes").get<std::int64_t>() -
              after.at("activation_bytes").get<std::int64_t>() ==
          4 * kTokens * (10 * 64 + 4 + 4));
    CHECK(before.at("kept_bytes") == 0);
    CHECK(after.at("kept_bytes") == 2 * 4 * kTokens * 64);
  }
}
