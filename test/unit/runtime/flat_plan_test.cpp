// SPDX-License-Identifier: Apache-2.0
#include "sharding/flat_plan.hpp"

#include "sharding/shard_layout.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::sharding::FlatPlan;
using acc::sharding::ParameterRecord;

/// Parameters from text, one word each: the number of elements, then f: frozen, i: ignored.
std::vector<ParameterRecord> parameters_of(const std::vector<std::string>& words) {
  std::vector<ParameterRecord> records;
  for (const std::string& word : words) {
    ParameterRecord record;
    record.numel = std::stoll(word);
    record.trainable = word.find('f') == std::string::npos;
    record.ignored = word.find('i') != std::string::npos;
    records.push_back(record);
  }
  return records;
}

/// Returns a plan as text: "0,2 | f1 | i3".
std::string text_of(const std::vector<FlatPlan>& plans) {
  std::string text;
  for (const FlatPlan& plan : plans) {
    text += text.empty() ? "" : " | ";
    text += plan.traits.ignored ? "i" : "";
    text += plan.traits.trainable ? "" : "f";
    for (std::size_t i = 0; i < plan.members.size(); ++i) {
      text += (i == 0 ? "" : ",") + std::to_string(plan.members[i]);
    }
  }
  return text;
}

ShardingSettings settings_of(Strategy strategy) {
  ShardingSettings settings;
  settings.strategy = strategy;
  return settings;
}

std::string plan_of(const std::vector<std::string>& words, const ShardingSettings& settings,
                    int shards, bool by_rows = false) {
  return text_of(plan_flats(parameters_of(words), settings,
                            acc::settings::switches(settings.strategy), shards, by_rows));
}

}  // namespace

TEST_CASE("flat parameters: trained, frozen and ignored parameters are separate") {
  const auto plan = [](const std::vector<std::string>& words) {
    return plan_of(words, settings_of(Strategy::full_shard), 2);
  };
  CHECK(plan({"5", "6", "7"}) == "0,1,2");
  CHECK(plan({"5", "6f", "7"}) == "0,2 | f1");
  CHECK(plan({"5i", "6f", "7", "8fi", "9i"}) == "2 | f1 | i0,4 | if3");
  CHECK(plan({}).empty());
}

TEST_CASE("by rows: each parameter is a flat parameter, divided as torch.chunk does") {
  CHECK(plan_of({"5", "6f", "7i"}, settings_of(Strategy::full_shard), 2, true) == "0 | f1 | i2");
  const acc::sharding::FlatLayout layout = acc::sharding::lay_out_rows(15, 5, 4);
  CHECK(layout.shard_numel == 6);  // chunks of 2, 2, 1 and 0 rows
  CHECK(acc::sharding::overlap(layout, 0, layout.shard(2)).in_parameter == 12);
  CHECK(acc::sharding::overlap(layout, 0, layout.shard(2)).numel == 3);
  CHECK(acc::sharding::overlap(layout, 0, layout.shard(3)).numel == 0);
}

TEST_CASE("reduce_bucket_size: whole parameters up to the limit, a larger one alone") {
  struct Case {
    std::int64_t reduce, gather;
    Strategy strategy;
    const char* expected;
  };
  for (const Case& each : {Case{0, 0, Strategy::full_shard, "0,1,2,3,5 | f4"},
                           Case{100, 0, Strategy::full_shard, "0,1,2,3,5 | f4"},
                           Case{10, 0, Strategy::full_shard, "0,1 | 2 | 3,5 | f4"},
                           Case{9, 0, Strategy::no_shard, "0 | 1 | 2 | 3,5 | f4"},
                           Case{1, 0, Strategy::hybrid_shard, "0 | 1 | 2 | 3 | 5 | f4"},
                           // Only stage 1 gathers after the step.
                           Case{0, 10, Strategy::shard_optimizer, "0,1 | 2 | 3,5 | f4"},
                           Case{100, 9, Strategy::shard_optimizer, "0 | 1 | 2 | 3,5 | f4"},
                           Case{9, 100, Strategy::shard_optimizer, "0 | 1 | 2 | 3,5 | f4"},
                           Case{0, 9, Strategy::shard_grad_op, "0,1,2,3,5 | f4"},
                           Case{0, 9, Strategy::full_shard, "0,1,2,3,5 | f4"}}) {
    CAPTURE(each.reduce);
    CAPTURE(each.gather);
    ShardingSettings settings = settings_of(each.strategy);
    settings.reduce_bucket_size = each.reduce;
    settings.allgather_bucket_size = each.gather;
    CHECK(plan_of({"5", "5", "30", "4", "50f", "5"}, settings, 2) == each.expected);
  }
}

TEST_CASE("contiguous_gradients false: each trained parameter is a flat parameter") {
  ShardingSettings settings = settings_of(Strategy::full_shard);
  settings.contiguous_gradients = false;
  CHECK(plan_of({"1", "1", "2f", "3f", "4i", "5i"}, settings, 2) == "0 | 1 | f2,3 | i4,5");
}

TEST_CASE("round_robin_gradients reorders trained parameters, only with ZeRO 1 and 2") {
  const auto plan = [](Strategy strategy, int shards, std::int64_t bucket = 0) {
    ShardingSettings settings = settings_of(strategy);
    settings.round_robin_gradients = true;
    settings.reduce_bucket_size = bucket;
    return plan_of({"1", "1", "1", "9f", "1", "1", "1", "9f"}, settings, shards);
  };
  CHECK(plan(Strategy::shard_optimizer, 2) == "0,2,5,1,4,6 | f3,7");
  CHECK(plan(Strategy::shard_grad_op, 4) == "0,5,1,6,2,4 | f3,7");
  CHECK(plan(Strategy::shard_grad_op, 2, 3) == "0,2,5 | 1,4,6 | f3,7");
  CHECK(plan(Strategy::no_shard, 2) == "0,1,2,4,5,6 | f3,7");
  CHECK(plan(Strategy::full_shard, 2) == "0,1,2,4,5,6 | f3,7");
}
