// What estimate-memory foretells beside what the runtime reports of a training.
#include "commands/estimate_memory/memory_model.hpp"
#include "commands/estimate_memory/model_size.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>

using namespace acc::launcher;
using acc::plugins::Strategy;
using acc::test::Program;
using acc::test::TemporaryFolder;

namespace {

// GPT-2 in small, as train_gpt is told to build it.
constexpr const char* kConfig = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 4,
                                    "n_positions": 32, "vocab_size": 256})";
// Shards are padded to whole multiples of 16 elements, parameter by parameter.
constexpr double kTolerance = 0.02;

nlohmann::json last_report(const std::vector<std::string>& flags) {
  const TemporaryFolder folder;
  const std::string text = folder.path() / "text.txt";
  const std::string metrics = folder.path() / "metrics.jsonl";
  std::ofstream(text) << std::string(4096, 'a');
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "4"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(),
                 {"train_gpt", "--data", text, "--layers", "4", "--heads", "4", "--dim", "64",
                  "--seq_len", "32", "--steps", "2", "--micro_batch", "1", "--metrics", metrics});
  Program job(command);
  REQUIRE(job.wait() == 0);
  std::ifstream file(metrics);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line;
  }
  return nlohmann::json::parse(last).at("ranks").at(0);
}

void check_near(const nlohmann::json& report, const char* key, std::int64_t estimate) {
  CAPTURE(key);
  const double found = report.at(key).get<double>();
  CHECK(found == doctest::Approx(static_cast<double>(estimate)).epsilon(kTolerance));
}

}  // namespace

TEST_CASE("estimate-memory: what a training holds is what was foretold") {
  const ModelSize model = size_from_config(acc::plugins::parse_json(kConfig, "config.json"));
  struct Case {
    std::vector<std::string> flags;
    Strategy strategy;
    bool sixteen_bit = false;
  };
  const std::vector<Case> cases = {
      {{}, Strategy::no_shard},
      {{"--use_deepspeed", "--zero_stage", "1"}, Strategy::shard_optimizer},
      {{"--use_deepspeed", "--zero_stage", "2"}, Strategy::shard_grad_op},
      {{"--use_deepspeed", "--zero_stage", "3"}, Strategy::full_shard},
      {{"--use_fsdp"}, Strategy::full_shard},
      {{"--use_fsdp", "--mixed_precision", "bf16"}, Strategy::full_shard, true},
      {{"--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP", "--mixed_precision", "bf16"},
       Strategy::shard_grad_op,
       true},
  };
  for (const Case& each : cases) {
    CAPTURE(each.flags);
    const nlohmann::json report = last_report(each.flags);
    const TrainingSize size{.numel = model.numel(),
                            .largest_unit = model.largest_unit(),
                            .root = model.root(),
                            .num_processes = 4,
                            .num_local = 4,
                            .sixteen_bit = each.sixteen_bit,
                            .on_cpu = true};
    const RankMemory estimate = rank_memory(size, each.strategy, Offload::none);
    check_near(report, "parameter_bytes", estimate.parameters);
    check_near(report, "gradient_bytes", estimate.gradients);
    check_near(report, "optimizer_bytes", estimate.optimizer);
    check_near(report, "gathered_bytes", estimate.gathered);
    check_near(report, "gradient_buffer_bytes", estimate.gradient_buffers);
  }
}
