// SPDX-License-Identifier: Apache-2.0
#include "dcp/state_names.hpp"

#include <doctest/doctest.h>

using namespace acc::checkpoint::dcp;

namespace {

struct Named {
  Path path;             // empty: the folder has no paths
  const char* name;      // joined
  const char* expected;  // "kind name", of a group's key "group I KEY" or "group of NAME KEY"
  bool is_tensor = true;
};

std::string described(const StateName& name) {
  if (name.kind != "group") {
    return name.kind + " " + name.name;
  }
  return "group " + (name.parameter.empty() ? std::to_string(name.group) : "of " + name.parameter) +
         " " + name.key;
}

void check(const std::vector<Named>& named) {
  std::vector<Entry> entries;
  for (const Named& item : named) {
    Entry entry;
    entry.name = item.name;
    entry.path = item.path;
    entry.is_tensor = item.is_tensor;
    entries.push_back(entry);
  }
  const auto names = state_names(entries);
  REQUIRE(names.size() == named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    CHECK(described(names[i]) == named[i].expected);
  }
}

}  // namespace

TEST_CASE("a model's tensors lose the top key above them, and nothing else") {
  SUBCASE("Accelerate's") {
    check({{{"model", "h.0.weight"}, "model.h.0.weight", "param h.0.weight"},
           {{"model", "model.bias"}, "model.model.bias", "param model.bias"}});
  }
  SUBCASE("no paths") {
    check({{{}, "model.h.0.weight", "param h.0.weight"}, {{}, "model.b", "param b"}});
  }
  SUBCASE("no paths, names of their own begin so too") {
    check({{{}, "model.h.0.weight", "param model.h.0.weight"}, {{}, "head.b", "param head.b"}});
  }
  SUBCASE("no paths, all names begin alike") {
    check({{{}, "h.0.weight", "param h.0.weight"}, {{}, "h.0.bias", "param h.0.bias"}});
  }
  SUBCASE("another key") {
    check({{{"weights", "h.0.weight"}, "weights.h.0.weight", "param h.0.weight"},
           {{"weights", "step"}, "weights.step", "value weights.step", false}});
  }
  SUBCASE("no key") {
    check({{{"model.h.0.weight"}, "model.h.0.weight", "param model.h.0.weight"},
           {{"model.bias"}, "model.bias", "param model.bias"}});
  }
  SUBCASE("nothing") {
    check({});
  }
}

TEST_CASE("tensors and values of an optimizer are recognized") {
  SUBCASE("Accelerate's") {
    check({{{"optimizer", "state", "h.0.weight", "exp_avg"},
            "optimizer.state.h.0.weight.exp_avg",
            "exp_avg h.0.weight"},
           {{"optimizer", "state", "b", "step"}, "optimizer.state.b.step", "step b"},
           {{"optimizer", "param_groups", std::int64_t{1}, "lr"},
            "optimizer.param_groups.1.lr",
            "group 1 lr",
            false}});
  }
  SUBCASE("no paths") {
    check({{{}, "optimizer.state.h.0.weight.exp_avg", "exp_avg h.0.weight"},
           {{}, "optimizer.param_groups.0.lr", "group 0 lr", false}});
  }
  SUBCASE("flattened by get_optimizer_state_dict") {
    check({{{"optim", "state.h.0.weight.exp_avg"},
            "optim.state.h.0.weight.exp_avg",
            "exp_avg h.0.weight"},
           {{"optim", "param_groups.h.0.weight.lr"},
            "optim.param_groups.h.0.weight.lr",
            "group of h.0.weight lr",
            false},
           {{"optim", "param_groups.0.weight.lr"},
            "optim.param_groups.0.weight.lr",
            "group of 0.weight lr",
            false}});
  }
}

TEST_CASE("one folder may have a model, an optimizer and other entries, under one more key") {
  SUBCASE("side by side") {
    check({{{"model", "w"}, "model.w", "param w"},
           {{"optimizer", "state", "w", "exp_avg"}, "optimizer.state.w.exp_avg", "exp_avg w"},
           {{"ema", "w"}, "ema.w", "value ema.w"}});
  }
  SUBCASE("an application's state") {
    check({{{"app", "model", "w"}, "app.model.w", "param w"},
           {{"app", "optim", "state", "w", "exp_avg"}, "app.optim.state.w.exp_avg", "exp_avg w"},
           {{"app", "seen"}, "app.seen", "value app.seen"}});
  }
  SUBCASE("the model without a key") {
    check({{{"model.w"}, "model.w", "param model.w"},
           {{"optimizer", "state.model.w.exp_avg"},
            "optimizer.state.model.w.exp_avg",
            "exp_avg model.w"}});
  }
}
