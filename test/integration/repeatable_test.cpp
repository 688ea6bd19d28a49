// SPDX-License-Identifier: Apache-2.0
#include "parity_gpt.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

// Two runs of one layout give bitwise equal results, independent of the ranks' arrival order.
namespace {

struct Result {
  std::vector<std::pair<double, double>> steps;  ///< loss and gradient norm
  std::string weights;                           ///< bytes of the weights file
  bool operator==(const Result&) const = default;
};

Result run(const std::map<std::string, std::string>& variables) {
  const acc::test::TemporaryFolder folder;
  const std::string metrics = (folder.path() / "metrics.jsonl").string();
  const std::string weights = (folder.path() / "weights.safetensors").string();
  acc::test::train("fsdp_hybrid_shard", {.workers = 4, .machines = 2},
                   {"--steps", "10", "--metrics", metrics, "--export", weights},
                   {"--mixed_precision", "bf16"}, variables);
  Result result;
  for (const auto& step : acc::test::read_metrics(metrics)) {
    result.steps.emplace_back(step.at("loss"), step.at("grad_norm"));
  }
  result.weights = acc::test::file_text(weights);
  return result;
}

}  // namespace

TEST_CASE("hybrid sharding in bf16 on two machines is bitwise repeatable, deterministic or not") {
  const Result once = run({});
  REQUIRE(once.steps.size() == 10);
  REQUIRE(once.weights.size() > 120'576 * 4);
  CHECK(once.steps.front() != once.steps.back());
  CHECK((run({}) == once));
  CHECK((run({{"ACC_DETERMINISTIC", "true"}}) == once));
}
