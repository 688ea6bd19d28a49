// SPDX-License-Identifier: Apache-2.0
#include "optim/parameter_groups.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

using acc::ParameterGroup;
using acc::optim::assign_groups;
using acc::optim::GroupTable;

const std::vector<std::vector<std::string>> kNames = {
    {"embedding", "head.weight"}, {"layer0.weight"}, {"layer0.bias"}, {"layer1.weight"}};

}  // namespace

TEST_CASE("parameters are assigned to the group that names them, by name, tied name or prefix") {
  const std::vector<ParameterGroup> groups = {
      {.name = "first", .parameters = {"layer0.*"}},
      {.name = "ends", .parameters = {"head.weight", "layer1.weight"}}};
  CHECK(assign_groups(kNames, groups) == std::vector<std::size_t>{2, 1, 1, 2});
  CHECK(assign_groups(kNames, {}) == std::vector<std::size_t>{0, 0, 0, 0});
  const std::vector<ParameterGroup> all = {{.name = "all", .parameters = {"*", "embedding"}}};
  CHECK(assign_groups(kNames, all) == std::vector<std::size_t>{1, 1, 1, 1});
}

TEST_CASE("invalid groups are errors that name them") {
  struct Case {
    std::vector<ParameterGroup> groups;
    const char* message;
  };
  for (const Case& each : std::initializer_list<Case>{
           {{{.name = "a", .parameters = {"layer0.wieght"}}}, "'layer0.wieght'"},
           {{{.name = "a", .parameters = {"layer2*"}}}, "'layer2*'"},
           {{{.name = "a", .parameters = {}}}, "'a' names no parameters"},
           {{{.name = "a", .parameters = {"layer0.*"}},
             {.name = "b", .parameters = {"*.bias", "*"}}},
            "named '*.bias'"},
           {{{.name = "a", .parameters = {"layer0.*"}}, {.name = "b", .parameters = {"*"}}},
            "layer0.weight is in two parameter groups, 'a' and 'b'"}}) {
    CHECK_THROWS_WITH_AS(assign_groups(kNames, each.groups), doctest::Contains(each.message),
                         acc::Error);
  }
  for (const Case& each : std::initializer_list<Case>{
           {{{.parameters = {"*"}}}, "number 1 has no name"},
           {{{.name = "a"}, {.name = "a"}}, "two parameter groups are named 'a'"},
           {{{.name = "a", .lr = -1.0}}, "'a', lr: expected"},
           {{{.name = "a", .weight_decay = -0.1}}, "'a', weight_decay: expected"}}) {
    CHECK_THROWS_WITH_AS(GroupTable(0.1, 0.0, each.groups), doctest::Contains(each.message),
                         acc::Error);
  }
}

TEST_CASE("each group has its own rates, and a schedule moves them until they are set") {
  const std::vector<ParameterGroup> groups = {{.name = "slow", .lr = 0.01},
                                              {.name = "plain", .weight_decay = 0.0}};
  GroupTable table(0.1, 0.5, groups);
  CHECK(table.size() == 3);
  const std::size_t slow = table.index("slow");
  const std::size_t plain = table.index("plain");
  CHECK(table.lr(0, 7) == 0.1);
  CHECK(table.lr(slow, 7) == 0.01);
  CHECK(table.lr(plain, 7) == 0.1);
  CHECK(table.weight_decay(0) == 0.5);
  CHECK(table.weight_decay(slow) == 0.5);
  CHECK(table.weight_decay(plain) == 0.0);
  CHECK_THROWS_WITH((void)table.index("fast"), doctest::Contains("'fast'; there are slow, plain"));
  CHECK_THROWS_WITH((void)table.index(""), doctest::Contains("no parameter group"));

  table.set_schedule({[](std::int64_t step, double base) { return base / double(step + 1); }}, 0);
  CHECK(table.lr(0, 1) == 0.05);
  CHECK(table.lr(slow, 1) == 0.005);
  table.set_lr(slow, 0.25);
  CHECK(table.lr(slow, 3) == 0.25);
  CHECK(table.lr(0, 3) == 0.025);
  table.set_schedule({}, 3);
  CHECK(table.lr(0, 9) == 0.025);
  CHECK(table.lr(slow, 9) == 0.25);
}
