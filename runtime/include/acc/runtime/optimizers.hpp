#pragma once

#include <optional>
#include <string>
#include <vector>

namespace acc {

/// Decoupled weight decay (arXiv 1711.05101), torch.optim.AdamW's rule and defaults.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// torch.optim.SGD's rule: velocity = momentum * velocity + grad + weight_decay * weight.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

/// Parameters of an optimizer that have settings of their own.
struct ParameterGroup {
  std::string name = {};
  /// Full names of parameters, or names tied to them; a trailing `*` stands for any rest.
  std::vector<std::string> parameters = {};
  std::optional<double> lr = {};  ///< absent: the optimizer's
  /// Absent: the optimizer's. Parameters that were declared without weight decay have none here
  /// too.
  std::optional<double> weight_decay = {};
};

}  // namespace acc
