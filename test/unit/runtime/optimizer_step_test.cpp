// SPDX-License-Identifier: Apache-2.0
#include "acc/base/optimizer_rules.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/module_net.hpp"
#include "support/saved_step.hpp"
#include "support/temporary_folder.hpp"
#include "support/weights.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// The optimizer step under every strategy: groups, schedules, clipping, overflows.
namespace {

using acc::settings::MixedPrecision;
using acc::settings::NanPolicy;
using acc::settings::ShardingSettings;
using acc::settings::Strategy;
using acc::test::distance;
using acc::test::Job;
using acc::test::job_of;
using acc::test::ModuleNet;
using acc::test::ParameterSpec;
using acc::test::UnitSpec;
using acc::test::Weights;

/// The parameters of test/data/optimizers/make_groups.py in three units. `initial`: their values by
/// full name; empty: values that grow with the element's number.
std::vector<UnitSpec> net_of(const Weights& initial = {}) {
  const auto parameter = [&](const std::string& name, int numel, const std::string& full_name) {
    const auto found = initial.find(full_name);
    const auto values = found == initial.end() ? std::vector<float>{} : found->second;
    return ParameterSpec{
        .name = name,
        .numel = numel,
        .initializer = [values](std::uint64_t, std::int64_t offset, std::span<float> out) {
          for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = values.empty() ? 0.1F * static_cast<float>(offset) + 0.5F
                                    : values[static_cast<std::size_t>(offset) + i];
          }
        }};
  };
  return {{"", "Net", -1, {parameter("embedding", 39, "embedding")}},
          {"layer",
           "Layer",
           0,
           {parameter("weight", 77, "layer.weight"), parameter("bias", 5, "layer.bias")}},
          {"tail", "Tail", 0, {parameter("head", 21, "tail.head")}}};
}

/// The file's weights by full name: its "head" is in the unit "tail".
Weights weights_of(const nlohmann::json& golden) {
  auto weights = golden.get<Weights>();
  auto head = weights.extract("head");
  head.key() = "tail.head";
  weights.insert(std::move(head));
  return weights;
}

/// Runs `body` on every rank and returns rank 0's result.
template <typename Result>
Result on_ranks(const Job& job, const std::function<Result(acc::Runtime&)>& body) {
  Result result{};
  std::mutex mutex;
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = acc::Runtime::from_settings(settings, std::move(store));
    Result mine = body(runtime);
    runtime.barrier();
    const std::lock_guard lock(mutex);
    if (runtime.rank() == 0) {
      result = std::move(mine);
    }
  });
  return result;
}

std::vector<Job> jobs() {
  std::vector<Job> all = {job_of(Strategy::no_shard, 1), job_of(Strategy::full_shard, 3)};
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer,
                                  Strategy::shard_grad_op, Strategy::hybrid_shard}) {
    all.push_back(job_of(strategy, 4, 2));
  }
  return all;
}

float wave(int i, int step) {
  return static_cast<float>(std::sin(i + 3 * step));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("groups, a schedule and both ways of clipping give torch's weights") {
  const auto golden = nlohmann::json::parse(std::ifstream(ACC_TEST_DATA "/optimizers/groups.json"));
  const auto initial = weights_of(golden.at("initial"));
  const auto norms = golden.at("norms").get<std::vector<double>>();
  for (Job job : jobs()) {
    for (const std::int64_t tile : {0, 32}) {
      CAPTURE(to_string(job.sharding.strategy));
      CAPTURE(tile);
      job.sharding.sub_group_size = tile;
      const auto weights = on_ranks<Weights>(job, [&](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of(initial));
        auto optimizer = model.optimizer(
            acc::AdamW{.lr = 0.01, .weight_decay = 0.05},
            {{.name = "layer", .parameters = {"layer.*"}, .lr = 0.02, .weight_decay = 0.2},
             {.name = "head", .parameters = {"tail.head"}, .lr = 0.003}});
        optimizer.set_schedule(acc::linear_with_warmup(golden.at("warmup"), golden.at("total")));
        optimizer.set_clip_value(golden.at("clip_value"));
        optimizer.set_clip_norm(golden.at("clip_norm"));
        for (std::size_t step = 0; step < norms.size(); ++step) {
          const double lr = optimizer.lr();
          CHECK(optimizer.lr("layer") == doctest::Approx(2 * lr));
          net.micro_step([&](const std::string& name, int i, float weight) {
            const float factor = name == "tail.head" ? 10.0F : 1.0F;
            return factor * (wave(i, static_cast<int>(step)) + 0.5F * weight);
          });
          const acc::StepInfo info = optimizer.step();
          CHECK(info.lr == lr);
          CHECK(info.grad_norm == doctest::Approx(norms[step]).epsilon(1e-5));
          CHECK(info.clip_coefficient < 1.0);
        }
        return net.read();
      });
      CHECK(distance(weights, weights_of(golden.at("weights"))) < 2e-5);
    }
  }
}

TEST_CASE("every optimizer gives the same weights under every strategy") {
  for (const acc::OptimizerRule& rule : acc::kOptimizerRules) {
    CAPTURE(rule.name);
    acc::NamedRule settings{std::string(rule.name), {{"lr", 0.05}, {"weight_decay", 0.1}}};
    if (rule.coefficient("momentum") != nullptr) {
      settings.coefficients["momentum"] = 0.9;
    }
    Weights first;
    for (const Job& job : jobs()) {
      CAPTURE(to_string(job.sharding.strategy));
      const auto weights = on_ranks<Weights>(job, [&](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer =
            model.optimizer(settings, {{.name = "layer", .parameters = {"layer.*"}, .lr = 0.02}});
        for (int step = 0; step < 4; ++step) {
          net.micro_step([&](const std::string&, int i, float) { return wave(i, step); });
          optimizer.step();
        }
        return net.read();
      });
      first = first.empty() ? weights : first;
      CHECK(distance(first, weights) < 1e-5);
    }
  }
}

namespace {

using Matrix = std::vector<double>;  // row-major

/// a [rows][inner] times b [inner][columns].
Matrix product(const Matrix& a, const Matrix& b, std::size_t rows, std::size_t inner) {
  const std::size_t columns = b.size() / inner;
  Matrix c(rows * columns);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < inner; ++k) {
      for (std::size_t j = 0; j < columns; ++j) {
        c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
      }
    }
  }
  return c;
}

Matrix transposed(const Matrix& a, std::size_t rows) {
  const std::size_t columns = a.size() / rows;
  Matrix to(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    to[i % columns * rows + i / columns] = a[i];
  }
  return to;
}

/// _zeropower_via_newtonschulz of torch/optim/_muon.py, in double.
Matrix zeropower(Matrix x, std::size_t rows) {
  const std::size_t columns = x.size() / rows;
  if (rows > columns) {
    return transposed(zeropower(transposed(x, rows), columns), columns);
  }
  double squares = 0.0;
  for (const double each : x) {
    squares += each * each;
  }
  for (double& each : x) {
    each /= std::max(std::sqrt(squares), 1e-7);
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, transposed(x, rows), rows, columns);
    Matrix polynomial = product(gram, gram, rows, rows);
    for (std::size_t i = 0; i < gram.size(); ++i) {
      polynomial[i] = 2.0315 * polynomial[i] - 4.7750 * gram[i];
    }
    const Matrix next = product(polynomial, x, rows, rows);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = 3.4445 * x[i] + next[i];
    }
  }
  return x;
}

struct MuonParameter {
  std::string name;
  int numel, columns;  ///< columns 0: a vector
  bool whole;          ///< updated as a matrix
};

/// Weights of 5 steps by the formulas of torch.optim.Muon and AdamW in double.
Weights muon_by_formula(const std::vector<MuonParameter>& parameters, const Weights& initial,
                        bool matches_rms, bool nesterov,
                        const std::function<double(const std::string&, int, int)>& gradient) {
  Weights result;
  for (const MuonParameter& each : parameters) {
    const auto numel = static_cast<std::size_t>(each.numel);
    Matrix weights(initial.at(each.name).begin(), initial.at(each.name).end());
    Matrix m(numel);
    Matrix v(numel);
    for (int step = 1; step <= 5; ++step) {
      Matrix update(numel);
      for (std::size_t i = 0; i < numel; ++i) {
        const double grad = gradient(each.name, static_cast<int>(i), step);
        if (each.whole) {
          m[i] += 0.05 * (grad - m[i]);
          update[i] = nesterov ? grad + 0.95 * (m[i] - grad) : m[i];
        } else {
          m[i] += 0.1 * (grad - m[i]);
          v[i] += 0.001 * (grad * grad - v[i]);
          update[i] = 0.5 * (m[i] / (1.0 - std::pow(0.9, step))) /
                      (std::sqrt(v[i] / (1.0 - std::pow(0.999, step))) + 1e-8);
        }
      }
      const double rows = each.whole ? each.numel / each.columns : 1;
      const double size = !each.whole   ? 1.0
                          : matches_rms ? 0.2 * std::sqrt(std::max(rows, 1.0 * each.columns))
                                        : std::sqrt(std::max(1.0, rows / each.columns));
      if (each.whole) {
        update = zeropower(update, static_cast<std::size_t>(rows));
      }
      const double decay = each.whole ? 1.0 - 0.05 * 0.1 : 1.0 - 0.5 * 0.05 * 0.1;
      for (std::size_t i = 0; i < numel; ++i) {
        weights[i] = decay * weights[i] - 0.05 * size * update[i];
      }
    }
    result[each.name].assign(weights.begin(), weights.end());
  }
  return result;
}

}  // namespace

namespace {

/// Matrices and others in three units.
const std::vector<MuonParameter>& mixed_parameters() {
  static const std::vector<MuonParameter> all = {
      {"wide", 5 * 23, 23, true},      {"tall", 34 * 4, 4, true},   {"layer.square", 81, 9, true},
      {"layer.bias", 17, 0, false},    {"layer.row", 6, 6, true},   {"tail.column", 7, 1, true},
      {"tail.head", 13 * 3, 3, false}, {"tail.norm", 21, 0, false},
  };
  return all;
}

std::vector<UnitSpec> mixed_units() {
  std::vector<UnitSpec> specs = {
      {"", "Net", -1, {}}, {"layer", "Layer", 0, {}}, {"tail", "Tail", 0, {}}};
  for (const MuonParameter& each : mixed_parameters()) {
    const std::size_t unit = each.name.starts_with("layer.")  ? 1
                             : each.name.starts_with("tail.") ? 2
                                                              : 0;
    specs[unit].parameters.push_back(
        {.name = each.name.substr(unit == 0 ? 0 : each.name.find('.') + 1),
         .numel = each.numel,
         .columns = each.columns});
  }
  return specs;
}

/// A multiple of 2^-10, so that the mean over ranks is exact.
double exact_gradient(const std::string& name, int i, int step) {
  return std::round(std::sin(i * i + 3 * step + static_cast<int>(name.size())) * 1024.0) / 1024.0;
}

std::vector<Job> jobs_with_copies() {
  std::vector<Job> all = jobs();
  Job copies = job_of(Strategy::full_shard, 3);
  copies.copy_gathers = true;
  all.push_back(copies);
  all.push_back(job_of(Strategy::hybrid_shard, 4, 1));
  return all;
}

/// The weights after `steps` steps with `exact_gradient`. before: gets those before the first.
template <typename AnyRule>
Weights trained_mixed(const Job& job, const AnyRule& rule, int steps, Weights* before = nullptr) {
  return on_ranks<Weights>(job, [&](acc::Runtime& runtime) {
    auto model = runtime.model(9);
    ModuleNet net(model, mixed_units());
    auto optimizer =
        model.optimizer(rule, {{.name = "head", .parameters = {"tail.head"}, .matrices = false}});
    const Weights initial = net.read();
    if (runtime.rank() == 0 && before != nullptr) {
      *before = initial;
    }
    for (int step = 1; step <= steps; ++step) {
      net.micro_step([&](const std::string& name, int i, float) {
        return static_cast<float>(exact_gradient(name, i, step));
      });
      optimizer.step();
    }
    return net.read();
  });
}

}  // namespace

TEST_CASE("Muon: whole matrices by their owners give the formula's weights in every layout") {
  for (const bool matches_rms : {false, true}) {
    const bool nesterov = !matches_rms;
    const acc::NamedRule rule{"muon",
                              {{"lr", 0.05},
                               {"match_rms_adamw", matches_rms ? 1.0 : 0.0},
                               {"nesterov", nesterov ? 1.0 : 0.0},
                               {"adam_lr_ratio", 0.5}}};
    std::map<std::int64_t, Weights> first;
    for (Job job : jobs_with_copies()) {
      for (const std::int64_t window : {0, 32}) {
        CAPTURE(to_string(job.sharding.strategy));
        CAPTURE(job.world_size);
        CAPTURE(job.copy_gathers);
        CAPTURE(window);
        job.sharding.sub_group_size = window;
        Weights initial;
        const Weights weights = trained_mixed(job, rule, 5, &initial);
        const Weights expected =
            muon_by_formula(mixed_parameters(), initial, matches_rms, nesterov, exact_gradient);
        CHECK(distance(expected, weights) < 2e-5);
        if (first.empty()) {
          first[0] = weights;
        }
        CHECK(distance(first.at(0), weights) == 0.0);
      }
    }
  }
}

TEST_CASE("rules of whole parameters give the same weights in every layout") {
  // The factored means of Adafactor use sums of squares over shards, which have an order.
  for (const auto& each : std::vector<std::pair<acc::NamedRule, double>>{
           {{"adafactor", {{"lr", 0.05}, {"weight_decay", 0.1}}}, 1e-6},
           {{"adafactor_transformers", {{"beta1", 0.5}, {"weight_decay", 0.1}}}, 1e-6},
           {{"soap", {{"lr", 0.05}, {"precondition_frequency", 2.0}}}, 0.0},
           {{"soap", {{"lr", 0.05}, {"max_precondition_dim", 9.0}}}, 0.0},
           {{"shampoo", {{"lr", 0.05}, {"momentum", 0.5}, {"precondition_frequency", 2.0}}},
            0.0}}) {
    CAPTURE(each.first.name);
    Weights first;
    for (Job job : jobs_with_copies()) {
      for (const std::int64_t window : {0, 32}) {
        CAPTURE(to_string(job.sharding.strategy));
        CAPTURE(job.world_size);
        CAPTURE(job.copy_gathers);
        CAPTURE(window);
        job.sharding.sub_group_size = window;
        const Weights weights = trained_mixed(job, each.first, 6);
        first = first.empty() ? weights : first;
        CHECK(distance(first, weights) <= each.second);
      }
    }
  }
}

TEST_CASE("gradients of zero change no weights with Adafactor") {
  for (const char* name : {"adafactor", "adafactor_transformers"}) {
    CAPTURE(std::string(name));
    Weights before;
    const auto after =
        on_ranks<Weights>(job_of(Strategy::full_shard, 2), [&](acc::Runtime& runtime) {
          auto model = runtime.model(9);
          ModuleNet net(model, mixed_units());
          auto optimizer = model.optimizer(acc::NamedRule{name});
          const Weights initial = net.read();
          if (runtime.rank() == 0) {
            before = initial;
          }
          net.micro_step([](const std::string&, int, float) { return 0.0F; });
          optimizer.step();
          return net.read();
        });
    CHECK(distance(before, after) == 0.0);
  }
}

TEST_CASE("a rule of the program for matrices is called once for each, with its states") {
  // The sums of rows and columns so far, of which the product is the update.
  acc::MatrixRule rule{
      .update =
          [](const acc::OwnedMatrix& of) {
            for (std::int64_t i = 0; i < of.rows * of.columns; ++i) {
              of.states[0][i / of.columns] += of.values[i];
              of.states[1][i % of.columns] += of.values[i];
            }
            for (std::int64_t i = 0; i < of.rows * of.columns; ++i) {
              of.values[i] = of.states[0][i / of.columns] * of.states[1][i % of.columns];
            }
          },
      .states = {{"rows", acc::MatrixState::rows}, {"columns", acc::MatrixState::columns}},
      .others = {"lion", {{"lr", 0.01}, {"weight_decay", 0.1}}}};
  Weights first;
  for (const Job& job : jobs_with_copies()) {
    CAPTURE(to_string(job.sharding.strategy));
    CAPTURE(job.world_size);
    const Weights weights = trained_mixed(job, rule, 3);
    first = first.empty() ? weights : first;
    CHECK(distance(first, weights) == 0.0);
  }
  rule.update = [](const acc::OwnedMatrix& of) { throw std::runtime_error("no " + of.name); };
  for (const auto& [others, states, message] :
       std::vector<std::tuple<acc::NamedRule, decltype(rule.states), const char*>>{
           {{"adamw"}, {}, "no "},
           {{"soap"}, {}, "SOAP cannot update the other parameters"},
           {{"lamb"}, {}, "Lamb cannot update the other parameters"},
           {{"adamw"}, {{"param", acc::MatrixState::whole}}, "names the state 'param'"}}) {
    rule.others = others;
    rule.states = states;
    CHECK_THROWS_WITH_AS(trained_mixed(job_of(Strategy::full_shard, 2), rule, 1),
                         doctest::Contains(message), std::exception);
  }
}

TEST_CASE("Muon: all ranks agree about which matrices are updated element by element") {
  CHECK_THROWS_WITH_AS(
      acc::test::run_ranks(
          job_of(Strategy::full_shard, 2),
          [&](const auto& settings, auto store) {
            auto runtime = acc::Runtime::from_settings(settings, std::move(store));
            auto model = runtime.model();
            ModuleNet net(model, net_of());
            model.optimizer(
                acc::NamedRule{"muon"},
                {{.name = "layer", .parameters = {"layer.*"}, .matrices = runtime.rank() == 0}});
          }),
      doctest::Contains("matrices of parameter group 'layer'"), acc::Error);
}

namespace {

/// What all ranks recorded of tensors: four numbers by step, phase and name. The sketches of parts
/// add up.
std::map<std::string, std::array<double, 4>> recorded_in(const std::filesystem::path& folder) {
  std::map<std::string, std::array<double, 4>> found;
  std::set<std::string> parts;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream lines(file.path());
    std::string kind;
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      kind = line.at("kind");
      if (kind == "tensor") {
        const auto name =
            fmt::format("{} {} {}", line.at("step").get<int>(), line.at("phase").get<std::string>(),
                        line.at("name").get<std::string>());
        if (parts.insert(fmt::format("{} {}", name, line.at("begin").get<int>())).second) {
          for (std::size_t i = 0; i < 4; ++i) {
            found[name][i] += line.at("sketch")[i].get<double>();
          }
        }
      } else if (kind == "clip") {
        found[fmt::format("{} clip", line.at("step").get<int>())] = {
            line.at("norm").get<double>(), line.at("limit").get<double>(), 0.0, 0.0};
      } else if (kind == "step") {  // some ranks have no part of some parameters
        double& changed = found[fmt::format("{} step", line.at("step").get<int>())][0];
        changed = std::max(changed, line.at("parameters").get<double>());
      }
    }
    CHECK(kind == "end");
  }
  return found;
}

}  // namespace

TEST_CASE("recordings of a training are the same under every strategy, and change nothing") {
  const acc::test::TemporaryFolder disk;
  std::vector<Job> all = jobs();
  // Gradients in a file, and weights in a file or, if they are persistent, in memory.
  acc::settings::ShardingSettings& last =
      all.emplace_back(job_of(Strategy::full_shard, 2)).sharding;
  last.offload_optimizer = last.offload_param = acc::settings::OffloadDevice::nvme;
  last.offload_optimizer_nvme_path = last.offload_param_nvme_path = disk.path().string();
  last.nvme = {.block_size = 4096, .queue_depth = 2};
  last.param_persistence_threshold = 50;
  std::map<std::string, std::array<double, 4>> first;
  for (const Job& job : all) {
    CAPTURE(to_string(job.sharding.strategy));
    const acc::test::TemporaryFolder folder;
    Weights plain;
    for (const bool records : {false, true}) {
      acc::test::run_ranks(job, [&](auto settings, auto store) {
        settings.recording.folder = records ? folder.path().string() : "";
        auto runtime = acc::Runtime::from_settings(settings, std::move(store));
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::AdamW{.lr = 0.05, .weight_decay = 0.1});
        optimizer.set_clip_norm(1.0);
        for (int step = 0; step < 2; ++step) {
          net.micro_step([&](const std::string&, int i, float) { return wave(i, step); });
          optimizer.step();
        }
        const Weights weights = net.read();
        runtime.barrier();
        if (runtime.rank() == 0) {
          CHECK((!records || distance(plain, weights) == 0.0));
          plain = weights;
        }
      });
    }
    const auto found = recorded_in(folder.path());
    // Of 4 parameters: gradients and updates in 2 steps, weights before; clipping and end of a
    // step.
    CHECK(found.size() == 4 * 5 + 4);
    CHECK(found.at("1 step")[0] >= 2.0);
    first = first.empty() ? found : first;
    for (const auto& each : found) {
      const auto& name = each.first;
      const auto& numbers = each.second;
      CAPTURE(name);
      for (std::size_t i = 0; !name.ends_with("step") && i < 4; ++i) {
        CHECK(numbers[i] == doctest::Approx(first.at(name)[i]).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("sub_group_size cuts the step into tiles that change nothing") {
  struct Expected {
    std::int64_t sub_group_size, tiles;
  };
  // On two ranks, flat parameters of 39, 77 + 5 and 21 elements have shards of 24, 48 and 16, with
  // gaps.
  Weights first;
  for (const Expected& each : {Expected{0, 3}, Expected{1'000'000'000, 3}, Expected{40, 4},
                               Expected{16, 6}, Expected{3, 6}}) {
    CAPTURE(each.sub_group_size);
    Job job = job_of(Strategy::full_shard, 2);
    job.sharding.sub_group_size = each.sub_group_size;
    const auto weights = on_ranks<Weights>(job, [&](acc::Runtime& runtime) {
      auto model = runtime.model();
      ModuleNet net(model, net_of());
      auto optimizer = model.optimizer(acc::AdamW{.lr = 0.1, .weight_decay = 0.1});
      for (int step = 0; step < 2; ++step) {
        net.micro_step([&](const std::string&, int i, float) { return wave(i, step); });
        const acc::StepInfo info = optimizer.step();
        if (runtime.rank() == 0) {
          CHECK(info.tiles == each.tiles);
        }
      }
      return net.read();
    });
    first = first.empty() ? weights : first;
    CHECK(distance(first, weights) == 0.0);
  }
}

TEST_CASE("the configuration's optimizer and schedule") {
  Job job = job_of(Strategy::full_shard, 2);
  job.sharding.optimizer = {.type = "AdamW", .lr = 0.5, .weight_decay = 0.25};
  job.sharding.schedule = {.type = "WarmupDecayLR",
                           .warmup_max_lr = 0.1,
                           .warmup_num_steps = 2,
                           .warmup_type = "linear",
                           .total_num_steps = 4};
  const auto rates = on_ranks<std::vector<double>>(job, [&](acc::Runtime& runtime) {
    auto model = runtime.model();
    ModuleNet net(model, net_of());
    auto optimizer = model.optimizer_from_settings();
    std::vector<double> seen;
    for (int step = 0; step < 7; ++step) {
      net.micro_step([](const std::string&, int i, float) { return wave(i, 0); });
      seen.push_back(optimizer.step().lr);
    }
    return seen;
  });
  CHECK(rates == std::vector<double>{0.0, 0.0, 0.05, 0.1, 0.05, 0.0, 0.0});

  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  ModuleNet net(model, net_of());
  CHECK_THROWS_WITH(model.optimizer_from_settings(), doctest::Contains("chooses no optimizer"));
}

TEST_CASE("Muon of the configuration divides the parameters as DeepSpeed does") {
  Job job = job_of(Strategy::full_shard, 2);
  job.sharding.optimizer = {.type = "Muon", .lr = 0.05, .values = "adam_lr=0.01"};
  const auto train = [&](const std::function<acc::Optimizer(acc::Model&)>& made) {
    return on_ranks<Weights>(job, [&](acc::Runtime& runtime) {
      auto model = runtime.model();
      std::vector<UnitSpec> units = net_of();
      units[0].parameters[0].columns = 3;
      units[1].parameters[0].columns = 7;
      ModuleNet net(model, units);
      auto optimizer = made(model);
      for (int step = 0; step < 4; ++step) {
        net.micro_step([&](const std::string&, int i, float) { return wave(i, step); });
        optimizer.step();
      }
      return net.read();
    });
  };
  using acc::settings::ScheduleChoice;
  const std::map<std::string, double> cycle = {
      {"cycle_min_lr", 0.01}, {"cycle_max_lr", 0.1}, {"cycle_first_step_size", 2.0}};
  for (const auto& each :
       {std::pair{
            ScheduleChoice{.type = "WarmupCosineLR", .warmup_num_steps = 2, .total_num_steps = 9},
            acc::warmup_cosine_lr({.total_steps = 9, .warmup_steps = 2})},
        std::pair{ScheduleChoice{.type = "OneCycle",
        .values = "cycle_min_lr=0.01,cycle_max_lr=0.1,cycle_first_step_size=2"},
                  acc::schedule_of(acc::NamedSchedule{"OneCycle", cycle}).lr}}) {
    CAPTURE(each.first.type);
    job.sharding.schedule = each.first;
    const auto by_hand = train([&](acc::Model& model) {
      auto optimizer = model.optimizer(
          acc::NamedRule{
              "muon", {{"lr", 0.05}, {"weight_decay", 0.0}, {"beta2", 0.95}, {"adam_eps", 1e-10}}},
          {{.name = "others",
            .parameters = {"embedding", "layer.bias", "tail.head"},
            .lr = 0.01,
            .matrices = false}});
      optimizer.set_schedule(each.second);
      return optimizer;
    });
    const auto of_settings =
        train([](acc::Model& model) { return model.optimizer_from_settings(); });
    CHECK(distance(of_settings, by_hand) == 0.0);
  }
}

TEST_CASE("a model has one optimizer at a time, and its groups must fit") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model();
  ModuleNet net(model, net_of());
  CHECK_THROWS_WITH(model.optimizer(acc::AdamW{}, {{.name = "a", .parameters = {"lyaer.*"}}}),
                    doctest::Contains("'lyaer.*'"));
  {
    auto optimizer = model.optimizer(acc::AdamW{}, {{.name = "a", .parameters = {"layer.*"}}});
    CHECK_THROWS_WITH(optimizer.set_lr("b", 0.1), doctest::Contains("no parameter group"));
    CHECK_THROWS_WITH(model.optimizer(acc::Sgd{}), doctest::Contains("has an optimizer already"));
  }
  CHECK_NOTHROW(model.optimizer(acc::Sgd{}));
}

TEST_CASE("a model by rows is updated by its program, and refuses every optimizer by name") {
  auto runtime = acc::Runtime::from_settings({}, nullptr);
  auto model = runtime.model(0, {.by_rows = true});
  ModuleNet net(model, net_of());
  const auto says = doctest::Contains("the program updates them itself");
  for (const acc::OptimizerRule& rule : acc::kOptimizerRules) {
    CAPTURE(rule.name);
    CHECK_THROWS_WITH(model.optimizer(acc::NamedRule{std::string(rule.name)}), says);
  }
  CHECK_THROWS_WITH(model.optimizer(acc::ProgramRule{.update = [](const auto&) {}}), says);
}

TEST_CASE("a non-finite gradient is used, skipped on all ranks, or raised with its unit") {
  struct Outcome {
    std::vector<acc::StepInfo> steps;
    Weights before, after;
    std::string error;
  };
  for (const NanPolicy policy : {NanPolicy::ignore, NanPolicy::skip, NanPolicy::raise}) {
    for (Job job : jobs()) {
      CAPTURE(to_string(job.sharding.strategy));
      CAPTURE(static_cast<int>(policy));
      job.sharding.nan_policy = policy;
      job.sharding.gradient_accumulation_steps = 2;
      const int guilty = job.world_size - 1;
      const auto outcome = on_ranks<Outcome>(job, [&](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::Sgd{.lr = 0.1});
        Outcome mine;
        for (int step = 0; step < 3; ++step) {
          mine.before = step == 1 ? net.read() : mine.before;
          for (int micro_step = 0; micro_step < 2; ++micro_step) {
            net.micro_step([&](const std::string& name, int i, float) {
              const bool broken = step == 1 && micro_step == 1 && runtime.rank() == guilty &&
                                  ((name == "layer.bias" && i == 3) || name == "embedding");
              return broken ? kInfinity : wave(i, step);
            });
          }
          try {
            mine.steps.push_back(optimizer.step());
          } catch (const acc::Error& error) {
            mine.error = error.what();
            CHECK(error.rank() == guilty);
          }
          mine.after = step == 1 ? net.read() : mine.after;
        }
        return mine;
      });
      if (policy == NanPolicy::raise) {
        CHECK(outcome.error ==
              "step 2: a gradient is not finite, first in unit 'layer' in "
              "micro-step 2 on rank " +
                  std::to_string(guilty));
      } else {
        CHECK(outcome.error.empty());
        CHECK(std::isinf(outcome.steps[1].grad_norm));
        CHECK(outcome.steps[1].skipped == (policy == NanPolicy::skip));
        CHECK(outcome.steps[2].skipped_steps == (policy == NanPolicy::skip ? 1 : 0));
        CHECK(outcome.steps[2].step == (policy == NanPolicy::skip ? 2 : 3));
      }
      if (policy == NanPolicy::ignore) {
        CHECK(std::isinf(outcome.after.at("embedding")[0]));
        CHECK(std::isfinite(outcome.after.at("tail.head")[0]));
      } else {
        CHECK(distance(outcome.before, outcome.after) == 0.0);
      }
    }
  }
}

TEST_CASE("a sum over ranks that overflows is raised with its unit") {
  Job job = job_of(Strategy::full_shard, 2);
  job.sharding.nan_policy = NanPolicy::raise;
  CHECK_THROWS_WITH(on_ranks<int>(job,
                                  [&](acc::Runtime& runtime) {
                                    auto model = runtime.model();
                                    ModuleNet net(model, net_of());
                                    auto optimizer = model.optimizer(acc::Sgd{});
                                    net.micro_step([](const std::string& name, int, float) {
                                      return name == "tail.head" ? 3e38F : 1.0F;
                                    });
                                    optimizer.step();
                                    return 0;
                                  }),
                    doctest::Contains("the sum over the ranks of unit 'tail' is not"));
}

TEST_CASE("clipping by value only, by norm only, and by the launcher's setting") {
  struct Case {
    std::optional<double> configured;
    std::optional<double> norm;
    double value;
    double clip_norm;
  };
  for (const Case& each :
       {Case{{}, {}, 0.0, 0.0}, Case{{}, {}, 0.3, 0.0}, Case{{}, 0.7, 0.0, 0.7},
        Case{1.5, {}, 0.0, 1.5}, Case{1.5, 0.0, 0.0, 0.0}, Case{1.5, {}, 0.3, 1.5}}) {
    for (Job job : jobs()) {
      CAPTURE(to_string(job.sharding.strategy));
      job.sharding.gradient_clipping = each.configured;
      struct Outcome {
        Weights before, after;
        acc::StepInfo info;
      };
      const auto outcome = on_ranks<Outcome>(job, [&](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::Sgd{.lr = 1.0});
        if (each.norm) {
          optimizer.set_clip_norm(*each.norm);
        }
        optimizer.set_clip_value(each.value);
        CHECK(optimizer.clip_norm() == each.clip_norm);
        CHECK(optimizer.clip_value() == each.value);
        Outcome mine{net.read(), {}, {}};
        net.micro_step([](const std::string&, int i, float) { return wave(i, 0); });
        mine.info = optimizer.step();
        mine.after = net.read();
        return mine;
      });
      double squares = 0.0;
      double clamped = 0.0;
      const auto clamp = [&](double gradient) {
        return each.value == 0.0 ? gradient : std::clamp(gradient, -each.value, each.value);
      };
      for (const auto& [name, values] : outcome.before) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double gradient = wave(static_cast<int>(i), 0);
          squares += gradient * gradient;
          clamped += clamp(gradient) * clamp(gradient);
        }
      }
      CHECK(outcome.info.grad_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
      const double coefficient =
          each.clip_norm == 0.0 ? 1.0 : std::min(1.0, each.clip_norm / (std::sqrt(clamped) + 1e-6));
      CHECK(outcome.info.clip_coefficient == doctest::Approx(coefficient).epsilon(1e-6));
      for (const auto& [name, values] : outcome.before) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double update = coefficient * clamp(wave(static_cast<int>(i), 0));
          CHECK(std::abs(outcome.after.at(name)[i] - (values[i] - update)) < 2e-6);
        }
      }
    }
  }
}

TEST_CASE("an infinite norm that no policy stops clips all gradients to zero, as in torch") {
  const auto weights =
      on_ranks<Weights>(job_of(Strategy::full_shard, 4, 2), [&](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::Sgd{.lr = 1.0});
        optimizer.set_clip_norm(1.0);
        const Weights before = net.read();
        net.micro_step([](const std::string& name, int i, float) {
          return name == "tail.head" && i == 20 ? kInfinity : 1.0F;
        });
        optimizer.step();
        Weights after = net.read();
        CHECK(std::isnan(after.at("tail.head")[20]));
        after.at("tail.head")[20] = before.at("tail.head")[20];
        CHECK(distance(before, after) == 0.0);
        return after;
      });
  CHECK(weights.size() == 4);
}

TEST_CASE(
    "checkpoints contain the schedule's position and skipped steps, and load with other groups") {
  const acc::test::TemporaryFolder folder;
  struct Part {
    acc::StepSchedule schedule;
    std::string checkpoint;
    int from, until;
    std::vector<acc::ParameterGroup> groups;
    bool saves;
  };
  struct Outcome {
    std::vector<acc::StepInfo> steps;
    Weights weights;
  };
  const auto run = [&](Job job, const Part& part) {
    job.sharding.nan_policy = NanPolicy::skip;
    return on_ranks<Outcome>(job, [&](acc::Runtime& runtime) {
      auto model = runtime.model();
      ModuleNet net(model, net_of());
      auto optimizer = model.optimizer(acc::AdamW{.lr = 0.1}, part.groups);
      if (part.from > 0) {
        CHECK(acc::test::step_of(runtime.load(part.checkpoint, model, optimizer)) == part.from);
      }
      optimizer.set_schedule(part.schedule);
      Outcome mine;
      for (int step = part.from; step < part.until; ++step) {
        net.micro_step([&](const std::string&, int i, float) {
          return step == 1 && i == 4 ? kInfinity : wave(i, step);
        });
        mine.steps.push_back(optimizer.step());
      }
      if (part.saves) {
        runtime.save(part.checkpoint, model, optimizer, acc::test::at_step(part.until));
      }
      mine.weights = net.read();
      return mine;
    });
  };
  const std::vector<acc::ParameterGroup> groups = {
      {.name = "slow", .parameters = {"layer.*", "embedding"}, .lr = 0.01, .weight_decay = 0.5}};
  const std::vector<acc::ParameterGroup> others = {
      {.name = "a", .parameters = {"embedding"}, .lr = 0.01, .weight_decay = 0.5},
      {.name = "b", .parameters = {"layer.*"}, .lr = 0.01, .weight_decay = 0.5}};
  const acc::NamedSchedule cycle{"OneCycle",
                                 {{"cycle_min_lr", 0.01},
                                  {"cycle_max_lr", 0.1},
                                  {"cycle_first_step_size", 2.0},
                                  {"decay_step_size", 1.0},
                                  {"decay_lr_rate", 0.5},
                                  {"decay_mom_rate", 0.02}}};
  const acc::NamedSchedule range{
      "LRRangeTest", {{"lr_range_test_min_lr", 0.01}, {"lr_range_test_step_size", 2.0}}};
  const std::pair<const char*, acc::StepSchedule> schedules[] = {
      {"linear", {acc::linear_with_warmup(2, 8)}},
      {"WarmupLR", {acc::warmup_lr({.max_lr = 0.1, .warmup_steps = 5})}},
      {"WarmupCosineLR", {acc::warmup_cosine_lr({.total_steps = 6, .warmup_steps = 2})}},
      {"OneCycle", acc::schedule_of(cycle)},
      {"LRRangeTest", acc::schedule_of(range)}};
  for (const auto& [name, schedule] : schedules) {
    const std::string checkpoint = (folder.path() / name).string();
    CAPTURE(checkpoint);
    const Outcome unbroken =
        run(job_of(Strategy::full_shard, 4, 2), {schedule, checkpoint, 0, 6, groups, false});
    run(job_of(Strategy::full_shard, 4, 2), {schedule, checkpoint, 0, 3, groups, true});
    for (const Job& job :
         {job_of(Strategy::full_shard, 4, 2), job_of(Strategy::shard_optimizer, 3)}) {
      const Outcome resumed = run(job, {schedule, checkpoint, 3, 6, others, false});
      CHECK(distance(unbroken.weights, resumed.weights) < 2e-6);
      for (int i = 0; i < 3; ++i) {
        const acc::StepInfo& expected = unbroken.steps[static_cast<std::size_t>(3 + i)];
        const acc::StepInfo& got = resumed.steps[static_cast<std::size_t>(i)];
        CHECK(got.step == expected.step);
        CHECK(got.lr == expected.lr);
        CHECK(got.skipped_steps == 1);
      }
    }
  }
}

namespace {

Job fp16_job(Strategy strategy, const acc::settings::LossScaling& rules, int world = 4,
             int machines = 2) {
  Job job = job_of(strategy, world, machines);
  job.sharding.mixed_precision = MixedPrecision::fp16;
  job.sharding.loss_scaling = rules;
  job.sharding.nan_policy = NanPolicy::raise;  // no effect: fp16 expects overflows
  return job;
}

/// Makes steps [from, until) with the gradient of the scaled loss. In steps 1 and 2 a gradient of
/// rank 0 overflows.
std::vector<acc::StepInfo> scaled_steps(acc::Runtime& runtime, acc::Optimizer& optimizer,
                                        ModuleNet& net, int from, int until) {
  std::vector<acc::StepInfo> steps;
  for (int step = from; step < until; ++step) {
    const auto scale = static_cast<float>(optimizer.loss_scale());
    net.micro_step([&](const std::string& name, int i, float) {
      const bool overflows =
          (step == 1 || step == 2) && runtime.rank() == 0 && name == "tail.head" && i == 20;
      return overflows ? kInfinity : scale * wave(i, step);
    });
    steps.push_back(optimizer.step());
    CHECK(steps.back().loss_scale == scale);
  }
  return steps;
}

}  // namespace

TEST_CASE("with fp16 gradients are divided by the loss scale, and every rank skips an overflow") {
  using acc::settings::LossScaleRule;
  using acc::settings::LossScaling;
  struct Case {
    LossScaling rules;
    std::vector<double> scales;  ///< before each step, and after the last
  };
  const acc::test::TemporaryFolder folder;
  const std::string checkpoint = (folder.path() / "checkpoint").string();
  const Weights expected =
      on_ranks<Weights>(job_of(Strategy::no_shard, 4, 2), [](acc::Runtime& runtime) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::Sgd{.lr = 0.1});
        optimizer.set_clip_norm(2.0);
        for (const int step : {0, 3, 4, 5}) {
          net.micro_step([&](const std::string&, int i, float) { return wave(i, step); });
          optimizer.step();
        }
        return net.read();
      });
  for (const Case& each : {Case{{.initial_scale_power = 3, .window = 2}, {8, 8, 4, 2, 2, 4, 4}},
                           Case{{.rule = LossScaleRule::deepspeed,
                           .initial_scale_power = 3,
                           .window = 2,
                           .hysteresis = 2,
                           .min_scale = 1.0},
                                {8, 8, 8, 4, 4, 4, 8}},
                           Case{{.static_scale = 16.0}, {16, 16, 16, 16, 16, 16, 16}}}) {
    for (const Strategy strategy :
         {Strategy::no_shard, Strategy::full_shard, Strategy::hybrid_shard}) {
      CAPTURE(to_string(strategy));
      const auto check = [&](const std::vector<acc::StepInfo>& steps, int from) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const int step = from + static_cast<int>(i);
          CAPTURE(step);
          CHECK(steps[i].loss_scale == each.scales[static_cast<std::size_t>(step)]);
          CHECK(steps[i].skipped == (step == 1 || step == 2));
          CHECK(steps[i].step == (step == 0 ? 1 : std::max(1, step - 1)));
          CHECK(steps[i].skipped_steps == std::min(step, 2));
        }
      };
      const auto body = [&](acc::Runtime& runtime, int from, int until) {
        auto model = runtime.model();
        ModuleNet net(model, net_of());
        auto optimizer = model.optimizer(acc::Sgd{.lr = 0.1});
        optimizer.set_clip_norm(2.0);
        if (from > 0) {
          runtime.load(checkpoint, model, optimizer);
        }
        check(scaled_steps(runtime, optimizer, net, from, until), from);
        CHECK(optimizer.loss_scale() == each.scales[static_cast<std::size_t>(until)]);
        runtime.save(checkpoint, model, optimizer);
        return net.read();
      };
      on_ranks<Weights>(fp16_job(strategy, each.rules),
                        [&](acc::Runtime& runtime) { return body(runtime, 0, 2); });
      const auto weights =
          on_ranks<Weights>(fp16_job(Strategy::full_shard, each.rules, 3, 1),
                            [&](acc::Runtime& runtime) { return body(runtime, 2, 6); });
      CHECK(distance(expected, weights) < 0.01);  // weights are read in fp16
    }
  }
}

TEST_CASE("DeepSpeed's rule ends the run on every rank at the smallest loss scale") {
  std::atomic<int> told = 0;
  const Job job = fp16_job(Strategy::full_shard, {.rule = acc::settings::LossScaleRule::deepspeed,
                                                  .initial_scale_power = 2,
                                                  .hysteresis = 1,
                                                  .min_scale = 2.0});
  on_ranks<int>(job, [&](acc::Runtime& runtime) {
    auto model = runtime.model();
    ModuleNet net(model, net_of());
    auto optimizer = model.optimizer(acc::Sgd{.lr = 0.1});
    scaled_steps(runtime, optimizer, net, 0, 2);
    try {
      scaled_steps(runtime, optimizer, net, 2, 3);
    } catch (const acc::Error& error) {
      told += std::string(error.what()).find("at its minimum") != std::string::npos;
    }
    return 0;
  });
  CHECK(told == 4);
}

TEST_CASE("with fp16 part of the division precedes the reduction") {
  Job job = fp16_job(Strategy::full_shard, {.static_scale = 1.0});
  on_ranks<int>(job, [&](acc::Runtime& runtime) {
    auto model = runtime.model();
    ModuleNet net(model, net_of());
    auto optimizer = model.optimizer(acc::Sgd{.lr = 1e-6});
    // The sum exceeds fp16's largest number, 65504, unless gradients are divided by 2 first (FSDP's
    // factor for 4 ranks).
    net.micro_step([](const std::string&, int, float) { return 1e5F; });
    const acc::StepInfo info = optimizer.step();
    CHECK_FALSE(info.skipped);
    CHECK(info.grad_norm == doctest::Approx(1e5 * std::sqrt(142.0)).epsilon(1e-3));
    return 0;
  });
}
