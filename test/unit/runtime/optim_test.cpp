// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "kernels/dense.hpp"
#include "kernels/kernels.hpp"
#include "optim/from_settings.hpp"
#include "optim/matrix_update.hpp"
#include "optim/sketch.hpp"
#include "optim/update.hpp"
#include "sharding/context.hpp"
#include "sharding/shard_layout.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using acc::kernels::available_kernels;
using acc::kernels::Kernels;

namespace {

using acc::optim::named;
using acc::optim::Rule;
using acc::sharding::FlatLayout;
using acc::sharding::Overlap;

/// Returns the rule with the settings of an optimizer of torch or DeepSpeed.
Rule rule_of(const std::string& name, const nlohmann::json& settings) {
  acc::NamedRule rule{name, {}};
  for (const auto& [key, value] : settings.items()) {
    if (key == "betas") {
      rule.coefficients["beta1"] = value[0];
      rule.coefficients["beta2"] = value[1];
    } else {
      rule.coefficients[key] =
          value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
    }
  }
  return Rule(rule);
}

void check_close(const std::vector<float>& got, const std::vector<float>& expected,
                 float bound = 4e-7F) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::abs(got[i] - expected[i]) <= bound * std::max(1.0F, std::abs(expected[i])));
  }
}

}  // namespace

// Values made by test/data/optimizers/make_golden.py, which writes the versions to "made_by".
TEST_CASE("each rule follows the optimizer of torch or DeepSpeed step by step") {
  const auto golden = nlohmann::json::parse(std::ifstream(ACC_TEST_DATA "/optimizers/golden.json"));
  for (const Kernels* table : available_kernels()) {
    for (const auto& row : golden.at("cases")) {
      CAPTURE(row.at("rule").dump());
      CAPTURE(row.at("settings").dump());
      const Rule rule = rule_of(row.at("rule"), row.at("settings"));
      auto weights = row.at("initial").get<std::vector<float>>();
      std::vector<std::vector<float>> states(rule.states().size());
      for (auto& state : states) {
        state.resize(weights.size());
      }
      std::vector<std::uint16_t> bf16(weights.size());
      std::int64_t step = 0;
      for (const auto& each : row.at("steps")) {
        const auto grads = each.at("grad").get<std::vector<float>>();
        table->update(rule.step(rule["lr"], rule["weight_decay"], ++step, each.at("grad_scale")),
                      {.weights = weights.data(),
                       .grads = grads.data(),
                       .first = !states.empty() ? states[0].data() : nullptr,
                       .second = states.size() > 1 ? states[1].data() : nullptr,
                       .third = states.size() > 2 ? states[2].data() : nullptr,
                       .rounded = bf16.data()},
                      0, weights.size());
        CAPTURE(step);
        check_close(weights, each.at("weights").get<std::vector<float>>());
      }
      std::vector<std::uint16_t> rounded(weights.size());
      table->f32_to_bf16(weights.data(), rounded.data(), weights.size());
      CHECK(bf16 == rounded);
    }
  }
}

TEST_CASE("the structs of AdamW and SGD are the rules of their names") {
  const nlohmann::json adamw = {
      {"lr", 0.5}, {"betas", {0.8, 0.75}}, {"eps", 0.25}, {"weight_decay", 0.125}};
  CHECK(Rule(named(acc::AdamW{0.5, 0.8, 0.75, 0.25, 0.125})).coefficients() ==
        rule_of("adamw", adamw).coefficients());
  const nlohmann::json sgd = {
      {"lr", 0.5}, {"momentum", 0.8}, {"weight_decay", 0.25}, {"nesterov", true}};
  CHECK(Rule(named(acc::Sgd{0.5, 0.8, 0.25, true})).coefficients() ==
        rule_of("sgd", sgd).coefficients());
}

TEST_CASE("an unknown optimizer or coefficient, and a value out of range, are refused by name") {
  struct Row {
    acc::NamedRule rule;
    const char* message;
  };
  for (const Row& each :
       {Row{{"lars", {}}, "no optimizer is named 'lars'; there are adamw, adam"},
        Row{{"sgd", {{"beta1", 0.9}}}, "SGD has no coefficient 'beta1'; it has lr, momentum"},
        Row{{"adamw", {{"beta2", 1.0}}}, "beta2: expected a number from 0 to 1 (excluded)"},
        Row{{"adamw", {{"eps", std::nan("")}}}, "eps: expected a number from 0 to inf"},
        Row{{"sgd", {{"momentum", 0.9}, {"nesterov", 0.5}}}, "nesterov: expected 0 or 1"},
        Row{{"sgd", {{"nesterov", 1.0}}}, "nesterov needs a momentum above 0"},
        Row{{"adafactor", {{"beta2_decay", 0.5}}},
            "beta2_decay: expected a number from -1000 to 0 (excluded), found 0.5"},
        Row{{"soap", {{"precondition_frequency", 0.0}}}, "expected a number from 1 to inf"}}) {
    CHECK_THROWS_WITH_AS(Rule(each.rule), doctest::Contains(each.message), acc::Error);
  }
}

TEST_CASE("a DeepSpeed file chooses any optimizer by its type") {
  using acc::optim::optimizer_of;
  const auto chosen = [](const acc::settings::OptimizerChoice& choice) {
    return std::get<acc::NamedRule>(optimizer_of(choice));
  };
  const auto lion = chosen({.type = "Lion", .lr = 0.5, .betas = {0.8, 0.9}, .weight_decay = 0.25});
  CHECK(lion.name == "lion");
  CHECK(lion.coefficients ==
        std::map<std::string, double>{
            {"lr", 0.5}, {"beta1", 0.8}, {"beta2", 0.9}, {"weight_decay", 0.25}});
  for (const acc::OptimizerRule& rule : acc::kOptimizerRules) {
    if (!rule.has_matrices() || rule.has_wholes_only() || rule.name == "muon") {
      CHECK(chosen({.type = std::string(rule.name)}).name == rule.name);
    } else {
      CHECK_THROWS_WITH_AS(optimizer_of({.type = std::string(rule.title)}),
                           doctest::Contains("does not say which parameters"), acc::Error);
    }
  }
  for (const char* type : {"LBFGS", "Lion with fp32_optimizer_states false"}) {
    CHECK_THROWS_WITH_AS(optimizer_of({.type = type}), doctest::Contains(type), acc::Error);
  }
}

TEST_CASE("Muon of a DeepSpeed file has DeepSpeed's parts, rates and defaults") {
  using acc::optim::groups_of;
  const auto trained_of = [](const std::string& name, std::vector<std::int64_t> shape) {
    acc::sharding::ParameterRecord made;
    made.name = name;
    made.shape = std::move(shape);
    return made;
  };
  const std::vector trained = {trained_of("Embed.weight", {9, 2}),
                               trained_of("layer.weight", {4, 4}), trained_of("layer.bias", {4}),
                               trained_of("lm_head.weight", {9, 2})};
  struct Row {
    acc::settings::OptimizerChoice choice;
    std::map<std::string, double> coefficients;
    double adam_lr;
  };
  for (const Row& each :
       {Row{{.type = "Muon"},
            {{"lr", 0.02}, {"weight_decay", 0.0}, {"beta2", 0.95}, {"adam_eps", 1e-10}},
            3e-4},
        Row{{.type = "muon",
        .lr = 0.5,
        .betas = {0.8, 0.9},
        .eps = 1e-6,
        .weight_decay = 0.25,
        .momentum = 0.75,
        .values = "adam_lr=0.125"},
            {{"lr", 0.5},
             {"beta1", 0.8},
             {"beta2", 0.9},
             {"adam_eps", 1e-6},
             {"weight_decay", 0.25},
             {"momentum", 0.75}},
            0.125},
        Row{{.type = "Muon", .lr = 0.5, .weight_decay = 0.0, .values = "muon_lr=0.25"},
            {{"lr", 0.25}, {"weight_decay", 0.0}, {"beta2", 0.95}, {"adam_eps", 1e-10}},
            0.5}}) {
    const auto rule = std::get<acc::NamedRule>(acc::optim::optimizer_of(each.choice));
    CHECK(rule.name == "muon");
    CHECK(rule.coefficients == each.coefficients);
    const auto groups = groups_of(each.choice, trained);
    REQUIRE(groups.size() == 1);
    CHECK_FALSE(groups[0].matrices);
    CHECK(groups[0].lr == each.adam_lr);
    CHECK(groups[0].parameters ==
          std::vector<std::string>{"Embed.weight", "layer.bias", "lm_head.weight"});
  }
  CHECK(groups_of({.type = "AdamW"}, trained).empty());
  CHECK(groups_of({.type = "Muon"}, std::vector{trained[1]}).empty());
  CHECK_THROWS_WITH_AS(groups_of({.type = "Muon"}, std::vector{trained_of("conv", {4, 4, 3})}),
                       doctest::Contains("'conv' with 3 dimensions"), acc::Error);
}

TEST_CASE("Lion follows the paper's formula in double, step by step") {
  for (const Kernels* table : available_kernels()) {
    for (const double weight_decay : {0.0, 0.1}) {
      CAPTURE(weight_decay);
      const Rule rule({"lion", {{"beta1", 0.8}, {"beta2", 0.97}}});
      constexpr std::size_t kNumel = 200;
      constexpr double kLr = 0.02;
      std::vector<float> weights(kNumel);
      std::vector<float> momentum(kNumel);
      std::vector<double> expected(kNumel);
      std::vector<double> m(kNumel);
      for (std::size_t i = 0; i < kNumel; ++i) {
        expected[i] = weights[i] = std::sin(static_cast<float>(i));
      }
      for (std::int64_t step = 1; step <= 20; ++step) {
        std::vector<float> grads(kNumel);  // the first ten have none
        for (std::size_t i = 10; i < kNumel; ++i) {
          grads[i] = std::cos(static_cast<float>(3 * i + 7 * static_cast<std::size_t>(step)));
          const double grad = 0.5 * static_cast<double>(grads[i]);
          const double between = 0.8 * m[i] + 0.2 * grad;
          m[i] = 0.97 * m[i] + 0.03 * grad;
          expected[i] -= kLr * (between > 0.0 ? 1.0 : -1.0);
          expected[i] -= kLr * weight_decay * (expected[i] + kLr * (between > 0.0 ? 1.0 : -1.0));
        }
        for (std::size_t i = 0; i < 10; ++i) {
          expected[i] *= 1.0 - kLr * weight_decay;
        }
        table->update(rule.step(kLr, weight_decay, step, 0.5),
                      {.weights = weights.data(),
                       .grads = grads.data(),
                       .first = momentum.data(),
                       .second = nullptr,
                       .rounded = nullptr},
                      0, kNumel);
      }
      check_close(weights, std::vector<float>(expected.begin(), expected.end()), 2e-6F);
      const float nan = std::nanf("");  // shows in the weight, as with the other rules
      table->update(rule.step(kLr, weight_decay, 21, 1.0),
                    {.weights = weights.data(),
                     .grads = &nan,
                     .first = momentum.data(),
                     .second = nullptr,
                     .rounded = nullptr},
                    0, 1);
      CHECK(std::isnan(weights[0]));
    }
  }
}

TEST_CASE("the eigenvectors of a symmetric matrix, also of one without full rank") {
  using acc::kernels::symmetric_eigen;
  for (const std::size_t size : {1U, 2U, 5U, 40U}) {
    for (const std::size_t rank : {std::size_t{0}, std::size_t{1}, size / 2, size}) {
      CAPTURE(size);
      CAPTURE(rank);
      std::vector<double> matrix(size * size);
      for (std::size_t i = 0; i < matrix.size(); ++i) {
        for (std::size_t k = 0; k < rank; ++k) {
          matrix[i] += std::sin(static_cast<double>(i / size * 7 + k * k)) *
                       std::sin(static_cast<double>(i % size * 7 + k * k));
        }
      }
      const acc::kernels::Eigen eigen = symmetric_eigen(matrix, size);
      CHECK(std::ranges::is_sorted(eigen.values, std::greater<>()));
      double worst = 0.0;
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t k = 0; k < size; ++k) {
          double rebuilt = 0.0;
          double angle = i == k ? -1.0 : 0.0;
          for (std::size_t v = 0; v < size; ++v) {
            rebuilt += eigen.values[v] * eigen.vectors[v * size + i] * eigen.vectors[v * size + k];
            angle += eigen.vectors[i * size + v] * eigen.vectors[k * size + v];
          }
          worst = std::max({worst, std::abs(rebuilt - matrix[i * size + k]), std::abs(angle)});
        }
      }
      CHECK(worst < 1e-12);
    }
  }
  CHECK(std::isnan(symmetric_eigen({1.0, std::nan(""), std::nan(""), 1.0}, 2).vectors[0]));
}

TEST_CASE("orthonormal rows span those of the matrix in order") {
  constexpr std::size_t kSize = 30;
  for (const std::size_t repeated : {std::size_t{0}, std::size_t{4}}) {  // rows that are equal
    std::vector<double> matrix(kSize * kSize);
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      const std::size_t row = std::max(repeated, i / kSize);
      matrix[i] = std::sin(static_cast<double>(row * row * 3 + i % kSize * 5));
    }
    std::vector<double> rows = matrix;
    acc::kernels::orthonormalize_rows(rows, kSize);
    double worst = 0.0;
    for (std::size_t i = 0; i < kSize; ++i) {
      for (std::size_t k = 0; k < kSize; ++k) {
        double angle = i == k ? -1.0 : 0.0;
        double part = 0.0;
        for (std::size_t v = 0; v < kSize; ++v) {
          angle += rows[i * kSize + v] * rows[k * kSize + v];
          part += rows[i * kSize + v] * matrix[k * kSize + v];
        }
        // Row k of the matrix has no part along the later orthonormal rows.
        worst = std::max({worst, std::abs(angle), i > k ? std::abs(part) : 0.0});
      }
    }
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("owners of matrices: the costliest first, each to the rank with the least") {
  using acc::optim::assign_owners;
  using Tasks = std::vector<acc::optim::OwnedTask>;
  CHECK(assign_owners(Tasks{{1}, {9}, {5}, {5}, {2}}, 2) == std::vector<int>{1, 0, 1, 1, 0});
  CHECK(assign_owners(Tasks{{3}, {3}}, 4) == std::vector<int>{0, 1});
  CHECK(assign_owners({}, 2).empty());
  const acc::optim::Shape wide = {2, 8};
  const acc::optim::Shape high = {8, 2};
  CHECK(assign_owners(Tasks{{3, wide}, {3, high}, {3, wide}, {3, high}}, 2) ==
        std::vector<int>{0, 0, 1, 1});
}

TEST_CASE("the clip coefficient equals torch's") {
  using acc::kernels::clip_coefficient;
  CHECK(clip_coefficient(0.5, 1.0) == 1.0);
  CHECK(clip_coefficient(4.0, 1.0) == doctest::Approx(1.0 / 4.000001).epsilon(1e-15));
  CHECK(clip_coefficient(4.0, 0.0) == 1.0);
  CHECK(clip_coefficient(std::numeric_limits<double>::infinity(), 1.0) == 0.0);
  CHECK(std::isnan(clip_coefficient(std::nan(""), 1.0)));
}

TEST_CASE("a sum is divided into a mean at once, and with float16 in FSDP's two parts") {
  using acc::DType;
  using acc::sharding::scale_gradients;
  struct Case {
    int world_size;
    float before;
  };
  // FSDP1's own pre-divide factors.
  for (const Case& each : {Case{1, 1.0F}, Case{2, 2.0F}, Case{3, 2.0F}, Case{4, 2.0F},
                           Case{6, 4.0F}, Case{8, 4.0F}, Case{16, 4.0F}, Case{64, 8.0F}}) {
    CAPTURE(each.world_size);
    const auto ranks = static_cast<float>(each.world_size);
    const auto halves = scale_gradients(each.world_size, 3, DType::float16);
    CHECK(halves.before == 1.0F / each.before);
    CHECK(halves.after == each.before / (3.0F * ranks));
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const auto wide = scale_gradients(each.world_size, 3, dtype);
      CHECK(wide.before == 1.0F);
      CHECK(wide.after == 1.0F / (3.0F * ranks));
    }
  }
}

TEST_CASE("sketch: the sketches of parts, at any place, add up to that of the whole tensor") {
  std::vector<float> values(10'000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
  }
  acc::optim::Sketch whole;
  whole.add(values, 0);
  acc::optim::Sketch parts;
  for (const auto& [begin, end] : {std::pair{4090, 10'000}, {0, 1}, {1, 4090}}) {
    parts.add(std::span(values).subspan(static_cast<std::size_t>(begin),
                                        static_cast<std::size_t>(end - begin)),
              begin);
  }
  CHECK(parts == whole);  // of small integers every sum is exact
  CHECK(whole.times(-2.0).squares == 4.0 * whole.squares);
  // Computed with Python from the formula in docs/formats/recording.md.
  CHECK(whole.squares == 8501650.0);
  CHECK(whole.numbers == std::array{-2418.0, -4826.0, -224.0, -1894.0});
}

TEST_CASE("the layout of some parameters has the same parts of them in each shard") {
  struct Case {
    std::vector<std::int64_t> numels;
    std::vector<std::size_t> some;
    int shards;
    std::int64_t shard_numel;  ///< of the layout of some
  };
  for (const Case& each : {
           Case{{100, 16, 500, 7}, {1, 3}, 1, 16 + 16}, Case{{100, 16, 500, 7}, {1, 3}, 2, 16},
           Case{{320, 40, 20, 280}, {1, 2}, 2, 16 + 32},  // the 40 lie in two shards
           Case{{20, 280, 40, 280, 20}, {0, 2, 4}, 2, 32 + 32},
           Case{{16, 16, 600}, {0, 1}, 4, 16 + 16},  // no part in three shards
           Case{{20, 500, 20}, {1}, 4, 144},         // a whole shard: not compact
       }) {
    CAPTURE(each.shards);
    const FlatLayout all = acc::sharding::lay_out(each.numels, each.shards);
    const FlatLayout some = acc::sharding::lay_out_some(all, each.some, each.shards);
    CHECK(some.shard_numel == each.shard_numel);
    CHECK(some.padded_numel == each.shard_numel * each.shards);
    for (int shard = 0; shard < each.shards; ++shard) {
      std::int64_t end = 0;
      for (const std::size_t i : each.some) {
        const Overlap from = overlap(all, i, all.shard(shard));
        const Overlap part = overlap(some, i, some.shard(shard));
        CHECK(part.numel == from.numel);
        CHECK(part.in_parameter == from.in_parameter);
        CHECK(part.in_shard % acc::sharding::kAlignment == 0);
        CHECK((part.numel == 0 || part.in_shard >= end));
        end = std::max(end, part.in_shard + part.numel);
      }
    }
  }
}
