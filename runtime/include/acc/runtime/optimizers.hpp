// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace acc {

/// Adam with decoupled weight decay (arXiv 1711.05101); rule and defaults of torch.optim.AdamW.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// Stochastic gradient descent with the rule and defaults of torch.optim.SGD:
/// velocity = momentum * velocity + grad + weight_decay * weight; weight -= lr * velocity (with
/// `nesterov`: weight -= lr * (grad + weight_decay * weight + momentum * velocity)).
struct Sgd {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

/// Parameters of an optimizer with separate settings.
struct ParameterGroup {
  std::string name = {};
  /// Full names of parameters, or names tied to them; a final `*` matches any ending.
  std::vector<std::string> parameters = {};
  std::optional<double> lr = {};  ///< absent: the optimizer's
  /// Absent: the optimizer's. Does not apply to parameters that were declared without weight decay.
  std::optional<double> weight_decay = {};
};

}  // namespace acc
