// SPDX-License-Identifier: Apache-2.0
#include "parity_gpt.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

// Compares train_gpt in 16 bits with a run of PyTorch in fp64 (test/data/parity_gpt): mixed
// precision and 16-bit weights, for several strategies, numbers of ranks and micro-steps.
namespace {

struct Run {
  std::string config;
  int workers = 2;
  int micro_steps = 1;
  std::vector<std::string> launcher_flags;
  std::vector<std::string> program_flags;
};

/// The largest differences from the fp64 run, over all steps.
struct Distance {
  double loss = 0.0;
  double norm = 0.0;  ///< relative
};

Distance distance_from_fp64(const Run& run) {
  const acc::test::TemporaryFolder folder;
  const std::string metrics = (folder.path() / "metrics.jsonl").string();
  std::vector<std::string> flags = {"--gradient_accumulation_steps",
                                    std::to_string(run.micro_steps)};
  flags.insert(flags.end(), run.launcher_flags.begin(), run.launcher_flags.end());
  std::vector<std::string> more = {"--steps", "20", "--metrics", metrics};
  more.insert(more.end(), run.program_flags.begin(), run.program_flags.end());
  acc::test::train(run.config, {run.workers, 1}, more, flags);
  const auto steps = acc::test::read_metrics(metrics);
  REQUIRE(steps.size() == 20);
  const auto expected = acc::test::golden().at("single_fp64");
  Distance most;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double loss = expected.at("loss").at(i);
    const double norm = expected.at("grad_norm").at(i);
    most.loss = std::max(most.loss, std::abs(steps[i].at("loss").get<double>() - loss));
    most.norm = std::max(most.norm, std::abs(steps[i].at("grad_norm").get<double>() - norm) / norm);
  }
  return most;
}

struct Layout {
  int workers, micro_steps;
};

void check_parity(const std::string& precision, const std::string& config) {
  for (const auto& [workers, micro_steps] :
       std::initializer_list<Layout>{{1, 1}, {2, 1}, {2, 2}, {4, 1}}) {
    CAPTURE(precision);
    CAPTURE(config);
    CAPTURE(workers);
    CAPTURE(micro_steps);
    const Distance most = distance_from_fp64({.config = config,
                                              .workers = workers,
                                              .micro_steps = micro_steps,
                                              .launcher_flags = {"--mixed_precision", precision},
                                              .program_flags = {}});
    CHECK(most.loss <= 3e-3);
    CHECK(most.norm <= 2e-2);
  }
}

constexpr const char* kConfigs[] = {"fsdp_full_shard",
                                    "fsdp_shard_grad_op",
                                    "fsdp_no_shard",
                                    "fsdp_hybrid_shard",
                                    "zero1",
                                    "zero2",
                                    "zero3"};

}  // namespace

TEST_CASE("bf16 follows fp64 in every strategy, with and without accumulation") {
  for (const char* config : kConfigs) {
    check_parity("bf16", config);
  }
}

TEST_CASE("fp16 follows fp64 in every strategy, with and without accumulation") {
  for (const char* config : kConfigs) {
    check_parity("fp16", config);
  }
}

TEST_CASE("weights and moments in 16 bits follow fp64 within their precision") {
  struct Row {
    const char* dtype;
    double loss, norm;  ///< limits; measured: 4.9e-3, 6.5e-3 and 3.3e-4, 4.6e-4
  };
  for (const Row& row : {Row{"bf16", 1e-2, 2e-2}, Row{"fp16", 1e-3, 2e-3}}) {
    for (const char* config : {"fsdp_full_shard", "fsdp_no_shard"}) {
      for (const auto& [workers, micro_steps] : std::initializer_list<Layout>{{1, 1}, {2, 2}}) {
        CAPTURE(std::string(row.dtype));
        CAPTURE(config);
        CAPTURE(workers);
        CAPTURE(micro_steps);
        const Distance most = distance_from_fp64({.config = config,
                                                  .workers = workers,
                                                  .micro_steps = micro_steps,
                                                  .launcher_flags = {},
                                                  .program_flags = {"--dtype", row.dtype}});
        CHECK(most.loss <= row.loss);
        CHECK(most.norm <= row.norm);
      }
    }
  }
}
