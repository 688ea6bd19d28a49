// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

/// Any of the runtime's optimizers by its name and its coefficients, with which it is also known in
/// settings and in C (docs/sharding.md, "Optimizers"). AdamW and Sgd are short for two of them.
struct NamedRule {
  std::string name = {};
  std::map<std::string, double> coefficients = {};  ///< absent: the default; booleans: 0 or 1
};

/// This rank's part of a trained parameter, a range of its elements in row-major order. In memory
/// of the device, or of the host if the optimizer is offloaded.
struct ParameterShard {
  std::string name = {};
  std::int64_t offset = 0;       ///< number of its first element in the parameter
  std::int64_t numel = 0;        ///< 0: this rank has none of the parameter
  bool weight_decay = true;      ///< false: the parameter was declared without weight decay
  DType dtype = DType::float32;  ///< of the weights
  bool in_host_memory = true;
  void* weights = nullptr;  ///< master weights, [numel]; the same memory in every step
  /// [numel]; null outside of a step, and of a parameter that the step leaves as it is
  /// (Unit::set_requires_grad).
  float* gradient = nullptr;
  /// Owns the memory of `gradient` if `Model::take_gradients` gives it to the program; else null.
  std::shared_ptr<void> gradient_memory = {};
  std::vector<float*> states = {};  ///< of ProgramRule::states, each [numel]
};

/// A function of the program that reads or changes shards.
using ShardsVisit = std::function<void(std::span<const ParameterShard> shards)>;

/// An update rule of the program (an optimizer of another library). Sharding, mean, clipping, loss
/// scale and publication of the new weights are as with the other rules; learning rates are the
/// program's.
struct ProgramRule {
  /// Updates the weights of all shards from their gradients, which are the mean over ranks and
  /// micro-steps, unscaled and clipped. Runs in `Optimizer::step`, in the thread that calls it; on
  /// a GPU it queues its work on the compute stream. Must not use the runtime. An exception fails
  /// the step on all ranks.
  ShardsVisit update = {};
  /// Returns what all ranks must have in common, a line "name=value" per setting. Each step calls
  /// it before it changes anything, and fails on all ranks if they differ.
  std::function<std::string()> settings = {};
  /// Names of values that the runtime keeps for each element of a parameter: float32, from 0, in
  /// the memory of the weights, sharded as they are, and in checkpoints.
  std::vector<std::string> states = {};
  /// What the rule holds itself, for checkpoints and snapshots: `state` returns it, `load_state`
  /// gets it back and throws Error(config) if it is of other shards. Ranks with the same shards
  /// have the same. Both or neither.
  std::function<std::string()> state = {};
  std::function<void(const std::string& state)> load_state = {};
};

/// A matrix that a MatrixRule updates, on the one rank that owns it, in host memory.
struct OwnedMatrix {
  std::string name = {};
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t step = 0;  ///< number of the step, from 1
  double lr = 0.0;
  double weight_decay = 0.0;  ///< 0 also if the parameter was declared without
  /// [rows][columns]: the gradient, the mean over ranks and micro-steps, unscaled and clipped.
  float* values = nullptr;
  std::vector<float*> states = {};  ///< of MatrixRule::states, from 0
};

/// Shapes of values that the runtime keeps of a matrix: as the matrix, a row or a column of it, and
/// squares.
enum class MatrixState { whole, rows, columns, rows_by_rows, columns_by_columns };

/// A rule of the program for parameters with two dimensions; the others are updated by one of the
/// runtime's rules, and so are the matrices of groups without `matrices`. Each matrix and its
/// states are whole on one rank. The result is the same in every strategy, if `update` depends on
/// nothing but its argument; the states are in checkpoints.
struct MatrixRule {
  /// Replaces `values` by the update: the weights become (1 - lr * weight_decay) * weights - lr *
  /// values. Runs in `Optimizer::step`, in the thread that calls it. Must not use the runtime. An
  /// exception fails the step on all ranks.
  std::function<void(const OwnedMatrix& matrix)> update = {};
  std::vector<std::pair<std::string, MatrixState>> states = {};
  /// Of the other parameters. Its `lr` and `weight_decay` are also those of the matrices.
  NamedRule others = {"adamw"};
};

/// Parameters of an optimizer with separate settings.
struct ParameterGroup {
  std::string name = {};
  /// Full names of parameters, or names tied to them; a final `*` matches any ending.
  std::vector<std::string> parameters = {};
  std::optional<double> lr = {};  ///< absent: the optimizer's
  /// Absent: the optimizer's. Does not apply to parameters that were declared without weight decay.
  std::optional<double> weight_decay = {};
  /// False: matrices are updated as the other parameters are. For rules that update matrices as a
  /// whole (Muon), which are not for embeddings and for the last layer.
  bool matrices = true;
};

}  // namespace acc
