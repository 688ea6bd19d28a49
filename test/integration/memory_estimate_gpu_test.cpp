// SPDX-License-Identifier: Apache-2.0
// Compares estimate-memory with the memory that the runtime uses on a stand-in GPU.
#include "memory_estimate.hpp"

using namespace acc::test;

TEST_CASE("estimate-memory: the estimate equals the GPU memory that a training uses") {
  const std::string standins = ACC_STANDIN_FOLDER;
  const std::map<std::string, std::string> variables = {
      {"LD_LIBRARY_PATH", standins},
      {"ACC_STANDIN_DEVICES", "4"},
      {"ACC_CUBLASLT_LIBRARY", standins + "/libcublasLt.so.13"},
      {"ACC_CUDNN_LIBRARY", standins + "/libcudnn.so.9"},
      {"ACC_CUDA_BACKEND", standins + "/libacc_cuda.so"},
      // Without registration, whose segments of 2 MiB are larger than this model.
      {"ACC_NCCL_LIBRARY", standins + "/nccl_old/libnccl.so.2"}};
  const auto persistent = [](acc::launcher::commands::TrainingSize& size) {
    size.persistent = size.numel;
  };
  const std::vector<EstimateCase> cases = {
      {{"--multi_gpu"}, Strategy::no_shard},
      {{"--multi_gpu", "--mixed_precision", "bf16"}, Strategy::no_shard, true},
      {{"--use_deepspeed", "--zero_stage", "1"}, Strategy::shard_optimizer},
      {{"--use_deepspeed", "--zero_stage", "1", "--mixed_precision", "bf16"},
       Strategy::shard_optimizer,
       true},
      // DeepSpeed's overlap_comm is off except for stage 3.
      {{"--use_deepspeed", "--zero_stage", "2"},
       Strategy::shard_grad_op,
       false,
       Offload::none,
       false},
      {{"--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"}, Strategy::shard_grad_op},
      {{"--use_fsdp"}, Strategy::full_shard},
      {{"--use_fsdp", "--mixed_precision", "bf16"}, Strategy::full_shard, true},
      {{"--use_fsdp"},
       Strategy::full_shard,
       false,
       Offload::none,
       true,
       {"--dtype", "bf16"},
       [](auto& size) { size.low_precision = true; }},
      {{"--use_fsdp", "--fsdp_offload_params", "true"}, Strategy::full_shard, false, Offload::all},
      {{"--use_fsdp", "--fsdp_offload_params", "true", "--mixed_precision", "bf16"},
       Strategy::full_shard,
       true,
       Offload::all},
      // Every parameter is below stage3_param_persistence_threshold.
      {{"--use_deepspeed", "--zero_stage", "3", "--offload_optimizer_device", "cpu"},
       Strategy::full_shard,
       false,
       Offload::optimizer,
       true,
       {},
       persistent},
      {{"--use_deepspeed", "--zero_stage", "3", "--offload_optimizer_device", "cpu",
        "--mixed_precision", "bf16"},
       Strategy::full_shard,
       true,
       Offload::optimizer,
       true,
       {},
       persistent},
      {{"--use_deepspeed", "--zero_stage", "1", "--offload_optimizer_device", "cpu",
        "--mixed_precision", "bf16"},
       Strategy::shard_optimizer,
       true,
       Offload::optimizer},
  };
  for (const EstimateCase& each : cases) {
    CAPTURE(words_of(each));
    const nlohmann::json found =
        metrics_of(each, ACC_BIN_DIR "/standin/train_gpt_standin", variables).at("ranks").at(0);
    const auto foretold =
        acc::launcher::commands::rank_memory(training_size(each), each.strategy, each.offload);
    const std::int64_t activations = found.at("activation_bytes");
    const std::int64_t used = found.at("device_peak_bytes").get<std::int64_t>() - activations;
    const bool overlaps_copies =
        each.strategy == Strategy::full_shard && each.offload != Offload::none;
    if (overlaps_copies) {  // the estimate is an upper bound, and not far from it
      CHECK(used <= foretold.device);
      CHECK(static_cast<double>(used) >= 0.85 * static_cast<double>(foretold.device));
    } else {
      check_near(used, foretold.device);
    }
    // Its shard is counted in host memory, as well.
    CHECK(found.at("parameter_bytes") > 0);
  }
}
