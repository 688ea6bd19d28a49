// SPDX-License-Identifier: Apache-2.0
// The self-test of acclaunch on stand-ins for GPUs, their driver and NCCL.
#include "support/program.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

using acc::test::contains;
using acc::test::Program;

TEST_CASE("self-test: strategies and offload on GPUs") {
  const std::string standins = ACC_STANDIN_FOLDER;
  const std::vector<std::vector<std::string>> cases = {
      {"--use_fsdp"},
      {"--use_fsdp", "--mixed_precision", "bf16"},
      {"--use_fsdp", "--fsdp_offload_params", "true"},
      {"--use_deepspeed", "--zero_stage", "1", "--mixed_precision", "bf16"},
      {"--use_deepspeed", "--zero_stage", "2", "--offload_optimizer_device", "cpu"},
  };
  for (const auto& flags : cases) {
    CAPTURE(flags);
    std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch", "--num_processes", "2"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.emplace_back(ACC_BIN_DIR "/standin/acc_self_test_standin");
    Program job(command, {{"LD_LIBRARY_PATH", standins},
                          {"ACC_STANDIN_DEVICES", "2"},
                          {"ACC_CUDA_BACKEND", standins + "/libacc_cuda.so"},
                          {"ACC_NCCL_LIBRARY", standins + "/libnccl.so.2"}});
    CHECK(job.wait() == 0);
    CAPTURE(job.err());
    CHECK(contains(job.err(), "collectives between GPUs: nccl"));
    CHECK(contains(job.out(),
                   "ok  a checkpoint is saved and loaded, and training resumes from it\n"));
  }
}
