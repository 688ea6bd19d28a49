// SPDX-License-Identifier: Apache-2.0
// Compares estimate-memory with the memory that the runtime reports for a training on the CPU.
#include "memory_estimate.hpp"

#include <algorithm>

using namespace acc::test;
using acc::launcher::commands::TrainingSize;

namespace {

using Words = std::vector<std::string>;

Words fsdp(const std::string& strategy, const Words& more = {}) {
  Words words = {"--use_fsdp", "--fsdp_sharding_strategy", strategy};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words zero(const std::string& stage, const Words& more = {}) {
  Words words = {"--use_deepspeed", "--zero_stage", stage};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kBf16 = {"--mixed_precision", "bf16"};

void check(const EstimateCase& each, const std::map<std::string, std::string>& variables = {}) {
  CAPTURE(words_of(each));
  EstimateCase on_cpu = each;
  on_cpu.flags.insert(on_cpu.flags.begin(), "--cpu");
  const nlohmann::json metrics = metrics_of(on_cpu, ACC_BIN_DIR "/train_gpt", variables);
  TrainingSize size = training_size(each);
  size.on_cpu = true;
  // 16-bit weights are not converted if the CPU can multiply them (AVX512-BF16).
  size.widens = metrics.at("compute_dtype") == "float32";
  const auto foretold = acc::launcher::commands::rank_memory(size, each.strategy, each.offload);
  const nlohmann::json& found = metrics.at("ranks").at(0);
  check_near(found.at("parameter_bytes"), foretold.parameters);
  check_near(found.at("gradient_bytes"), foretold.gradients);
  check_near(found.at("optimizer_bytes"), foretold.optimizer);
  // Shards that are read from a file take whole pages: that of a unit and that of the root.
  const std::int64_t pages = size.nvme == Offload::all ? 2 * 4096 : 0;
  const std::int64_t gathered = found.at("gathered_bytes");
  check_near(std::clamp(gathered, foretold.gathered, foretold.gathered + pages) == gathered
                 ? foretold.gathered
                 : gathered,
             foretold.gathered);
  check_near(found.at("gradient_buffer_bytes"), foretold.gradient_buffers);
  check_near(found.at("snapshot_bytes"), foretold.snapshot);
  // Each array takes whole pages: five units with up to five arrays.
  const std::int64_t in_files = found.at("nvme_bytes");
  CHECK(in_files >= foretold.nvme);
  CHECK(in_files - foretold.nvme <= (foretold.nvme == 0 ? 0 : 25 * 4096));
  check_near(found.at("nvme_buffer_bytes"), foretold.nvme_buffers);
}

/// DeepSpeed's defaults: the whole model is smaller than the reuse distance, and stays gathered.
void keep(TrainingSize& size) {
  size.keeps = 1'000'000'000;
}

const std::vector<EstimateCase> kStrategies = {
    {{}, Strategy::no_shard},
    {zero("0"), Strategy::no_shard},
    {zero("1"), Strategy::shard_optimizer},
    // DeepSpeed's overlap_comm is off except for stage 3.
    {zero("2"), Strategy::shard_grad_op, false, Offload::none, false},
    {zero("3"), Strategy::full_shard, false, Offload::none, true, {}, keep},
    {fsdp("NO_SHARD"), Strategy::no_shard},
    {fsdp("SHARD_GRAD_OP"), Strategy::shard_grad_op},
    {fsdp("FULL_SHARD"), Strategy::full_shard},
};

}  // namespace

TEST_CASE("estimate-memory: the estimate equals the memory that a training on the CPU uses") {
  for (EstimateCase each : kStrategies) {
    check(each);
    each.flags.insert(each.flags.end(), kBf16.begin(), kBf16.end());
    each.sixteen_bit = true;
    check(each);
  }
}

TEST_CASE("estimate-memory: shard groups of two ranks") {
  for (const auto& [name, strategy] :
       {std::pair{"HYBRID_SHARD", Strategy::hybrid_shard},
        std::pair{"HYBRID_SHARD_ZERO2", Strategy::hybrid_shard_zero2}}) {
    EstimateCase each{fsdp(name, {"--parallelism_config_dp_shard_size", "2"}), strategy};
    each.adjust = [](TrainingSize& size) { size.num_local = 2; };
    check(each);
  }
}

TEST_CASE("estimate-memory: the copy of a rank's part of a checkpoint that is written meanwhile") {
  const TemporaryFolder folder;
  EstimateCase each{fsdp("FULL_SHARD", {"--fsdp_version", "2", "--save_async"}),
                    Strategy::full_shard};
  each.options = {"--checkpoint", folder.path() / "run", "--checkpoint_every", "1"};
  each.adjust = [](TrainingSize& size) { size.async_saves = true; };
  check(each);
}

TEST_CASE("estimate-memory: snapshots in memory") {
  for (const char* const strategy : {"FULL_SHARD", "NO_SHARD"}) {
    const TemporaryFolder folder;
    EstimateCase each{
        fsdp(strategy, {"--fsdp_version", "1", "--memory_checkpoint_every", "1"}),
        strategy == std::string("NO_SHARD") ? Strategy::no_shard : Strategy::full_shard};
    each.options = {"--checkpoint", folder.path() / "run", "--checkpoint_every", "100"};
    each.adjust = [](TrainingSize& size) { size.memory_checkpoints = true; };
    check(each);
  }
}

TEST_CASE("estimate-memory: on the CPU an offload changes nothing, since all is in host memory") {
  check({fsdp("FULL_SHARD", {"--fsdp_offload_params", "true"}), Strategy::full_shard, false,
         Offload::all});
  const Words optimizer = {"--offload_optimizer_device", "cpu"};
  check({zero("1", optimizer), Strategy::shard_optimizer, false, Offload::optimizer});
  check({zero("2", optimizer), Strategy::shard_grad_op, false, Offload::optimizer, false});
  check({zero("3", {"--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"}),
         Strategy::full_shard, false, Offload::all});
}

TEST_CASE("estimate-memory: offload to NVMe: bytes in files, and the memory of their buffers") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "d.json";
  for (const bool sixteen_bit : {false, true}) {
    for (const int stage : {1, 2, 3}) {
      const nlohmann::json nvme = {{"device", "nvme"}, {"nvme_path", folder.path()}};
      // Nothing is kept in stage 3: neither small parameters nor units that are used again.
      nlohmann::json zero = {{"stage", stage},
                             {"offload_optimizer", nvme},
                             {"stage3_prefetch_bucket_size", 0},
                             {"stage3_param_persistence_threshold", 0},
                             {"stage3_max_reuse_distance", 0}};
      if (stage == 3) {
        zero["offload_param"] = nvme;
      }
      std::ofstream(path) << nlohmann::json({{"zero_optimization", zero},
                                             {"bf16", {{"enabled", sixteen_bit}}},
                                             {"train_micro_batch_size_per_gpu", "auto"}});
      EstimateCase each{{"--use_deepspeed", "--deepspeed_config_file", path},
                        stage == 1   ? Strategy::shard_optimizer
                        : stage == 2 ? Strategy::shard_grad_op
                                     : Strategy::full_shard,
                        sixteen_bit,
                        Offload::none,
                        stage != 2};
      each.adjust = [stage](TrainingSize& size) {
        size.nvme = stage == 3 ? Offload::all : Offload::optimizer;
      };
      check(each);
    }
  }
}

TEST_CASE("estimate-memory: weights loaded in 16 bits without mixed precision") {
  for (const auto& [name, strategy] :
       {std::pair{"NO_SHARD", Strategy::no_shard}, std::pair{"FULL_SHARD", Strategy::full_shard}}) {
    EstimateCase each{fsdp(name), strategy};
    each.options = {"--dtype", "bf16"};
    each.adjust = [](TrainingSize& size) { size.low_precision = true; };
    check(each);
  }
}

TEST_CASE("estimate-memory: with no_sync the full gradients stay in the buffers of reductions") {
  for (const auto& [name, strategy] : {std::pair{"FULL_SHARD", Strategy::full_shard},
                                       std::pair{"SHARD_GRAD_OP", Strategy::shard_grad_op}}) {
    EstimateCase each{fsdp(name, {"--gradient_accumulation_steps", "2"}), strategy};
    each.options = {"--no_sync"};
    each.adjust = [](TrainingSize& size) { size.no_sync = true; };
    check(each);
  }
}

TEST_CASE("estimate-memory: with ACC_SHM_GATHER set to copy each rank has its own gathered units") {
  const TemporaryFolder folder;
  const auto deepspeed = [&](const std::string& name, const std::string& keys) {
    const std::string path = folder.path() / name;
    std::ofstream(path)
        << R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3)"
        << ", \"overlap_comm\": true, " << keys << "}}";
    return Words{"--use_deepspeed", "--deepspeed_config_file", path};
  };
  std::vector<EstimateCase> cases = {
      {fsdp("SHARD_GRAD_OP"), Strategy::shard_grad_op},
      {fsdp("FULL_SHARD"), Strategy::full_shard},
      {fsdp("FULL_SHARD", {"--fsdp_backward_prefetch", "BACKWARD_PRE"}), Strategy::full_shard},
      {fsdp("FULL_SHARD", kBf16), Strategy::full_shard, true},
      {fsdp("FULL_SHARD"), Strategy::full_shard},
      // Every parameter is below the threshold.
      {zero("3"), Strategy::full_shard},
      {zero("3", kBf16), Strategy::full_shard, true},
      // The model has fewer elements than the reuse distance.
      {deepspeed("reuse.json", R"("stage3_param_persistence_threshold": 0)"), Strategy::full_shard},
      {deepspeed("none.json",
                 R"("stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
                    "stage3_prefetch_bucket_size": 0)"),
       Strategy::full_shard},
  };
  cases[2].adjust = [](TrainingSize& size) { size.prefetches = true; };
  cases[4].options = {"--dtype", "bf16"};
  cases[4].adjust = [](TrainingSize& size) { size.low_precision = true; };
  cases[5].adjust = cases[6].adjust = [](TrainingSize& size) {
    size.persistent = size.numel;
    keep(size);
  };
  cases[7].adjust = keep;
  for (EstimateCase& each : cases) {
    each.adjust = [also = each.adjust](TrainingSize& size) {
      size.copies = true;
      also(size);
    };
    check(each, {{"ACC_SHM_GATHER", "copy"}});
  }
}
