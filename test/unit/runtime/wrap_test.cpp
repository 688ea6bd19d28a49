// SPDX-License-Identifier: Apache-2.0
#include "model/wrap.hpp"

#include "acc/base/error.hpp"
#include "model/assembly.hpp"
#include "model/orig_params.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

using namespace acc::model;
using acc::settings::ShardingSettings;
using acc::settings::WrapPolicy;
using Names = std::set<std::string>;

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// Units of a module tree in JSON, as a program would declare them (test/data/wrap/make_cases.py).
class Declarer {
 public:
  std::vector<DeclaredUnit> declare(const nlohmann::json& tree) {
    units_.push_back({"", tree.at("class"), true, {}});
    visit(tree, "", 0);
    return std::move(units_);
  }

 private:
  void visit(const nlohmann::json& module, const std::string& path, std::size_t unit) {
    for (const auto& each : module.at("parameters")) {
      add(unit, join(path, each.at(0)), each.at(1), each.at(2));
    }
    for (const auto& child : module.at("children")) {
      const std::string name = join(path, child.at("name"));
      std::size_t child_unit = unit;
      if (child.at("declared")) {
        child_unit = units_.size();
        units_.push_back({name, child.at("class"), false, {}});
      }
      visit(child, name, child_unit);
    }
  }

  void add(std::size_t unit, const std::string& name, std::int64_t numel, int identity) {
    const auto known = places_.find(identity);
    if (known != places_.end()) {
      units_[known->second.first].parameters[known->second.second].names.push_back(name);
      return;
    }
    places_[identity] = {unit, units_[unit].parameters.size()};
    units_[unit].parameters.push_back({{name}, numel});
  }

  std::vector<DeclaredUnit> units_;
  std::map<int, std::pair<std::size_t, std::size_t>> places_;
};

Names names_of(const ModuleTree& tree, const std::vector<int>& modules) {
  Names names;
  for (const int each : modules) {
    names.insert(tree.modules[static_cast<std::size_t>(each)].name);
  }
  return names;
}

std::string pattern_of(const nlohmann::json& names) {
  std::string pattern;
  for (const std::string name : names) {
    for (const char c : (pattern.empty() ? "" : "|") + name) {
      pattern += c == '.' ? std::string("\\.") : std::string(1, c);
    }
  }
  return pattern;
}

/// A root with parameters in two undeclared modules, and two blocks, the second with a unit inside.
std::vector<DeclaredUnit> small_model() {
  return {{"net", "Net", true, {{{"net.wte.weight", "head.weight"}, 50}, {{"net.norm.weight"}, 5}}},
          {"net.h.0", "Block", false, {{{"net.h.0.attn.weight"}, 40}, {{"net.h.0.bias"}, 4}}},
          {"net.h.1", "Block", false, {{{"net.h.1.bias"}, 4}}},
          {"net.h.1.mlp", "Mlp", false, {{{"net.h.1.mlp.weight"}, 30}}}};
}

ModuleTree small_tree(const std::string& ignored = "") {
  return build_tree(small_model(), IgnoredModules(ignored));
}

Names wrapped(WrapPolicy policy, const ModuleTree& tree, std::vector<std::string> classes = {},
              std::int64_t min_numel = 1) {
  ShardingSettings settings;
  settings.wrap_policy = policy;
  settings.transformer_layer_classes = std::move(classes);
  settings.min_num_params = min_numel;
  return names_of(tree, wrap(settings, tree));
}

/// Returns a map: name of the sharded unit -> numbers of its parameters.
std::map<std::string, std::vector<int>> shares(const Assembly& assembly) {
  std::map<std::string, std::vector<int>> result;
  for (const UnitPlan& each : assembly.units) {
    result[each.name] = each.parameters;
  }
  return result;
}

Assembly assembled(const ModuleTree& tree, WrapPolicy policy, std::vector<std::string> classes = {},
                   std::int64_t min_numel = 1) {
  ShardingSettings settings;
  settings.wrap_policy = policy;
  settings.transformer_layer_classes = std::move(classes);
  settings.min_num_params = min_numel;
  return assemble(tree, wrap(settings, tree));
}

}  // namespace

TEST_CASE("wrap policies choose the same modules as torch") {
  std::ifstream file(ACC_TEST_DATA "/wrap/cases.json");
  const auto golden = nlohmann::json::parse(file);
  REQUIRE(golden.at("cases").size() == 80);
  for (const auto& each : golden.at("cases")) {
    CAPTURE(each.dump());
    const auto tree = build_tree(Declarer().declare(each.at("tree")),
                                 IgnoredModules(pattern_of(each.at("ignored"))));
    const bool by_class = each.contains("classes");
    const Names found =
        by_class ? wrapped(WrapPolicy::transformer_based, tree, each.at("classes"))
                 : wrapped(WrapPolicy::size_based, tree, {}, each.at("min_num_params").get<int>());
    CHECK(found == each.at("wrapped").get<Names>());
  }
}

TEST_CASE("modules nest by their dotted names") {
  const ModuleTree tree = small_tree();
  std::map<std::string, std::string> parents;
  for (const Module& each : tree.modules) {
    parents[each.name] =
        each.parent < 0 ? "" : tree.modules[static_cast<std::size_t>(each.parent)].name;
  }
  CHECK(parents == std::map<std::string, std::string>{{"net", ""},
                                                      {"net.wte", "net"},
                                                      {"net.norm", "net"},
                                                      {"head", "net"},
                                                      {"net.h.0", "net"},
                                                      {"net.h.0.attn", "net.h.0"},
                                                      {"net.h.1", "net"},
                                                      {"net.h.1.mlp", "net.h.1"}});
}

TEST_CASE("wrap policies: unset, by class, all classes, none") {
  const ModuleTree tree = small_tree();
  const Names units = {"net.h.0", "net.h.1", "net.h.1.mlp"};
  CHECK(wrapped(WrapPolicy::unset, tree) == units);
  CHECK(wrapped(WrapPolicy::transformer_based, tree) == units);
  CHECK(wrapped(WrapPolicy::transformer_based, tree, {"Block"}) == Names{"net.h.0", "net.h.1"});
  CHECK(wrapped(WrapPolicy::no_wrap, tree).empty());
  CHECK_THROWS_WITH_AS(
      wrapped(WrapPolicy::transformer_based, tree, {"Block", "Layer"}),
      doctest::Contains("names Layer, but no unit of this model has such a class; the model has "
                        "Block, Mlp, Net."),
      acc::Error);
}

TEST_CASE("parameters of unwrapped modules belong to the nearest wrapped ancestor") {
  const ModuleTree tree = small_tree();
  using Shares = std::map<std::string, std::vector<int>>;
  CHECK(shares(assembled(tree, WrapPolicy::unset)) ==
        Shares{{"net", {0, 1}}, {"net.h.0", {2, 3}}, {"net.h.1", {4}}, {"net.h.1.mlp", {5}}});
  const Assembly blocks = assembled(tree, WrapPolicy::transformer_based, {"Block"});
  CHECK(shares(blocks) == Shares{{"net", {0, 1}}, {"net.h.0", {2, 3}}, {"net.h.1", {4, 5}}});
  CHECK(blocks.owners == std::vector<std::vector<int>>{{0}, {1}, {2}, {2}});
  // Embedding and attention are large enough to be wrapped: the scopes of their units open both.
  const Assembly sized = assembled(tree, WrapPolicy::size_based, {}, 30);
  CHECK(shares(sized) ==
        Shares{{"net", {1, 3, 4}}, {"net.wte", {0}}, {"net.h.0.attn", {2}}, {"net.h.1.mlp", {5}}});
  for (std::size_t p = 0; p < tree.parameters.size(); ++p) {
    const Assembly::Place& place = sized.places[p];
    CHECK(sized.units[static_cast<std::size_t>(place.unit)]
              .parameters[static_cast<std::size_t>(place.index)] == static_cast<int>(p));
  }
  CHECK(sized.owners[0].size() == 2);  // the root and its embedding
  CHECK(sized.owners[2] == std::vector<int>{0});
}

TEST_CASE("a model without a declared root gets a root unit if it needs one") {
  const std::vector<DeclaredUnit> units = {{"a", "A", false, {{{"a.weight"}, 9}}},
                                           {"b", "B", false, {{{"b.weight"}, 2}}}};
  const ModuleTree tree = build_tree(units, IgnoredModules(""));
  CHECK(assembled(tree, WrapPolicy::unset).units.size() == 2);
  const Assembly sized = assembled(tree, WrapPolicy::size_based, {}, 5);
  REQUIRE(sized.units.size() == 2);
  CHECK(sized.units[0].name == "root");
  CHECK(sized.units[0].is_root);
  CHECK(sized.units[0].parameters == std::vector<int>{1});
}

TEST_CASE("ignored modules are those whose whole name matches, and all modules below") {
  struct Case {
    const char* pattern;
    std::vector<bool> ignored;  ///< expected for the six parameters
  };
  for (const Case& each : {Case{"", {false, false, false, false, false, false}},
                           Case{"net\\.h\\.0", {false, false, true, true, false, false}},
                           Case{"net\\.h", {false, false, true, true, true, true}},
                           Case{".*attn", {false, false, true, false, false, false}},
                           Case{"h", {false, false, false, false, false, false}},
                           Case{"head|.*\\.mlp", {true, false, false, false, false, true}}}) {
    CAPTURE(each.pattern);
    const ModuleTree tree = small_tree(each.pattern);
    std::vector<bool> found;
    for (const ModuleParameter& parameter : tree.parameters) {
      found.push_back(parameter.ignored);
    }
    CHECK(found == each.ignored);
  }
  // Ignored modules are not wrapped, and their elements do not count.
  CHECK(wrapped(WrapPolicy::transformer_based, small_tree("net\\.h\\.0"), {"Block"}) ==
        Names{"net.h.1"});
  CHECK(wrapped(WrapPolicy::size_based, small_tree(".*attn|.*wte"), {}, 30) ==
        Names{"net.h.1.mlp"});
  CHECK_THROWS_WITH_AS(IgnoredModules("(open"), doctest::Contains("fsdp_ignored_modules: '(open'"),
                       acc::Error);
}

TEST_CASE("use_orig_params false: a unit is trained as a whole, in one group") {
  using acc::sharding::ParameterRecord;
  std::vector<ParameterRecord> records(3);
  records[0].name = "h.weight";
  records[1].name = "h.bias";
  records[2].name = "h.extra";
  records[1].trainable = false;
  ShardingSettings settings;
  const auto group_of = [](const ParameterRecord& each) {
    return std::string(each.name == "h.extra" ? "slow" : "");
  };
  CHECK_NOTHROW(check_trained_alike(settings, "h", records));
  CHECK_NOTHROW(check_grouped_alike(settings, "h", records, group_of));
  settings.use_orig_params = false;
  CHECK_THROWS_WITH_AS(check_trained_alike(settings, "h", records),
                       doctest::Contains("fsdp_use_orig_params false: expected all parameters "
                                         "trained or all frozen in unit 'h', found h.weight "
                                         "trained and h.bias frozen"),
                       acc::Error);
  CHECK_THROWS_WITH_AS(check_grouped_alike(settings, "h", records, group_of),
                       doctest::Contains("h.weight in no group and h.extra in group 'slow'"),
                       acc::Error);
  records[1].ignored = records[2].ignored = true;
  CHECK_NOTHROW(check_trained_alike(settings, "h", records));
  CHECK_NOTHROW(check_grouped_alike(settings, "h", records, group_of));
}
