// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/store.hpp"
#include "acc/runtime.hpp"
#include "support/run_ranks.hpp"
#include "support/weights.hpp"

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace acc::test {

struct ParameterSpec {
  std::string name;
  int numel;
  ParameterOptions options = {};
  Initializer initializer = normal(0.5F);
  int columns = 0;  ///< above 0: the parameter is a matrix
};

struct UnitSpec {
  std::string name;
  std::string class_name;
  int parent;  ///< unit whose scopes enclose this unit's; -1: the root, which is first
  std::vector<ParameterSpec> parameters;
};

/// The gradient of one element of a parameter, in one micro-step of one rank.
using GradientRule = std::function<float(const std::string& name, int element, float weight)>;

/// Depends on every argument, so that a test notices if any two are mixed up.
inline GradientRule usual_gradient(int rank, int micro_step) {
  const float factor = 0.01F * static_cast<float>(1 + (rank * 7 + micro_step * 3) % 5);
  return [factor](const std::string&, int element, float weight) {
    return factor * (0.1F * weight + std::sin(static_cast<float>(element)));
  };
}

/// A model of nested units that computes only artificial gradients. The full name of a parameter is
/// "UNIT.NAME", or its name alone in a unit without a name.
class ModuleNet {
 public:
  ModuleNet(Model model, const std::vector<UnitSpec>& specs) : model_(std::move(model)) {
    for (const UnitSpec& spec : specs) {
      Unit& unit = spec.parent < 0 ? model_.root(spec.name, spec.class_name)
                                   : model_.unit(spec.name, spec.class_name);
      Node node{&unit, {}, {}};
      for (const ParameterSpec& each : spec.parameters) {
        const std::vector<std::int64_t> shape =
            each.columns > 0 ? std::vector<std::int64_t>{each.numel / each.columns, each.columns}
                             : std::vector<std::int64_t>{each.numel};
        node.parameters.push_back(
            {each, unit.parameter(each.name, shape, each.initializer, each.options)});
      }
      if (spec.parent >= 0) {
        nodes_[static_cast<std::size_t>(spec.parent)].children.push_back(nodes_.size());
      }
      nodes_.push_back(std::move(node));
    }
  }

  /// `unwritten`: full names of parameters that get no gradient.
  void micro_step(const GradientRule& rule, const std::set<std::string>& unwritten = {}) {
    forward(0);
    backward(0, rule, unwritten);
  }

  /// Returns all parameters by full name.
  Weights read() {
    const auto guard = model_.no_grad();
    Weights all;
    for (const Node& node : nodes_) {
      const auto use = node.unit->forward();
      for (const auto& [spec, handle] : node.parameters) {
        all[full_name(node, spec)] = values_of(use, handle, spec.numel);
      }
    }
    return all;
  }

  [[nodiscard]] Unit& unit(std::size_t number) { return *nodes_[number].unit; }
  [[nodiscard]] Parameter parameter(std::size_t unit, std::size_t number) const {
    return nodes_[unit].parameters[number].handle;
  }
  [[nodiscard]] Model& model() noexcept { return model_; }

 private:
  struct Declared {
    ParameterSpec spec;
    Parameter handle;
  };
  struct Node {
    Unit* unit;
    std::vector<Declared> parameters;
    std::vector<std::size_t> children;
  };

  static std::string full_name(const Node& node, const ParameterSpec& spec) {
    return node.unit->name().empty() ? spec.name : node.unit->name() + "." + spec.name;
  }

  void forward(std::size_t at) {
    const auto use = nodes_[at].unit->forward();
    for (const std::size_t child : nodes_[at].children) {
      forward(child);
    }
  }

  void backward(std::size_t at, const GradientRule& rule, const std::set<std::string>& unwritten) {
    auto use = nodes_[at].unit->backward();
    const auto& children = nodes_[at].children;
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      backward(*child, rule, unwritten);
    }
    for (const auto& [spec, handle] : nodes_[at].parameters) {
      const std::string name = full_name(nodes_[at], spec);
      if (!unwritten.contains(name)) {
        const float* const weights = use[handle];
        write_gradient(use.grad(handle), spec.numel,
                       [&](int i) { return rule(name, i, weights[i]); });
      }
    }
  }

  Model model_;
  std::vector<Node> nodes_;
};

/// The state of one rank after training.
struct Trained {
  Weights weights;
  TrafficReport traffic;  ///< traffic of the last step
  MemoryReport memory;
  StepInfo step;  ///< result of the last step
};

/// Trains on all ranks of a job. `rule` gives the gradients of a rank in a micro-step. Returns the
/// results by rank.
inline std::vector<Trained> train(
    const Job& job, const std::vector<UnitSpec>& specs, int steps,
    const std::function<GradientRule(int rank, int micro_step)>& rule = usual_gradient) {
  std::vector<Trained> results(static_cast<std::size_t>(job.world_size));
  run_ranks(job, [&](const auto& settings, auto store) {
    auto runtime = Runtime::from_settings(settings, std::move(store));
    auto model = runtime.model(42);
    ModuleNet net(model, specs);
    auto optimizer = model.optimizer(Sgd{.lr = 0.1});
    Trained& mine = results[static_cast<std::size_t>(settings.identity.rank)];
    for (int step = 0; step < steps; ++step) {
      model.reset_traffic();
      int number = 0;
      do {
        net.micro_step(rule(settings.identity.rank, number++));
      } while (!runtime.last_micro_step(model));
      mine.step = optimizer.step();
      mine.traffic = model.traffic();
    }
    mine.memory = model.memory();
    mine.weights = net.read();
    runtime.barrier();
  });
  return results;
}

}  // namespace acc::test
