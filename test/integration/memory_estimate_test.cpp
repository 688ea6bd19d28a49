// What estimate-memory foretells beside what the runtime reports of a training on the CPU.
#include "memory_estimate.hpp"

using namespace acc::test;

TEST_CASE("estimate-memory: what a training on the CPU holds is what was foretold") {
  const std::vector<EstimateCase> cases = {
      {{}, Strategy::no_shard},
      {{"--use_deepspeed", "--zero_stage", "1"}, Strategy::shard_optimizer},
      // DeepSpeed's overlap_comm is off but for stage 3.
      {{"--use_deepspeed", "--zero_stage", "2"},
       Strategy::shard_grad_op,
       false,
       Offload::none,
       false},
      {{"--use_deepspeed", "--zero_stage", "3"}, Strategy::full_shard},
      {{"--use_fsdp"}, Strategy::full_shard},
      {{"--use_fsdp", "--mixed_precision", "bf16"}, Strategy::full_shard, true},
      {{"--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP", "--mixed_precision", "bf16"},
       Strategy::shard_grad_op,
       true},
  };
  for (const EstimateCase& each : cases) {
    std::vector<std::string> flags = {"--cpu"};
    flags.insert(flags.end(), each.flags.begin(), each.flags.end());
    CAPTURE(flags);
    const nlohmann::json found = report(flags, ACC_BIN_DIR "/train_gpt");
    const auto foretold = estimate(each, true);
    check_near(found.at("parameter_bytes"), foretold.parameters);
    check_near(found.at("gradient_bytes"), foretold.gradients);
    check_near(found.at("optimizer_bytes"), foretold.optimizer);
    check_near(found.at("gathered_bytes"), foretold.gathered);
    check_near(found.at("gradient_buffer_bytes"), foretold.gradient_buffers);
  }
}
