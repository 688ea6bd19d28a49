// SPDX-License-Identifier: Apache-2.0
#include "optim/whole_rules.hpp"

#include "kernels/dense.hpp"
#include "kernels/orthogonalize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

namespace acc::optim {
namespace {

using kernels::DirectedStep;
using kernels::Multiplier;
using kernels::RunParts;

DirectedStep step_along(double decay, double size) {
  return {.grad_scale = 1.0F, .decay = static_cast<float>(decay), .size = static_cast<float>(size)};
}

double decay_of(const WholeStep& step) {
  return 1.0 - step.lr * step.weight_decay;
}

std::int64_t numel_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// --- Muon ---

WholeRule muon(const Rule& rule, device::Device& device) {
  const auto iterations = static_cast<int>(rule["ns_steps"]);
  const auto cost = [iterations](const Shape& shape) {
    return kernels::orthogonalize_cost(shape[0], shape[1], iterations);
  };
  const auto compute = [&device, iterations, eps = static_cast<float>(rule["eps"])](
                           const WholeParameter& of, const WholeStep& /*step*/) {
    kernels::orthogonalize(
        of.values.data(), static_cast<std::size_t>(of.shape[0]),
        static_cast<std::size_t>(of.shape[1]), iterations, eps, device.threads(),
        [&](std::size_t parts, const auto& task) { device.run_parts(parts, task); });
  };
  // torch's _adjust_lr.
  const auto directed = [matches_rms = rule["match_rms_adamw"] != 0.0](const Shape& shape,
                                                                       const WholeStep& step) {
    const auto high = static_cast<double>(shape[0]);
    const auto wide = static_cast<double>(shape[1]);
    const double size =
        matches_rms ? 0.2 * std::sqrt(std::max(high, wide)) : std::sqrt(std::max(1.0, high / wide));
    return step_along(decay_of(step), step.lr * size);
  };
  return {cost, compute, directed};
}

// --- Adafactor ---

double root_mean_square(std::span<const double> values) {
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

void move_towards(float& state, double value, double by) {
  state = static_cast<float>(state + by * (value - state));
}

/// The averages of the squares of a gradient, over rows and columns of the last two dimensions.
class FactoredSquares {
 public:
  /// by: weight of the new mean squares. added: to each square.
  FactoredSquares(const WholeParameter& of, double by, double added)
      : rows_(static_cast<std::size_t>(of.shape[of.shape.size() - 2])),
        columns_(static_cast<std::size_t>(of.shape.back())),
        of_rows_(of.states[0]),
        of_columns_(of.states[1]) {
    std::vector<double> sums(columns_);
    std::span<float> means = of_columns_;
    for (std::size_t first = 0; first < of_rows_.size(); first += rows_) {
      std::ranges::fill(sums, 0.0);
      for (std::size_t row = first; row < first + rows_; ++row) {
        double sum = 0.0;
        for (std::size_t column = 0; column < columns_; ++column) {
          const double value = of.values[row * columns_ + column];
          sum += value * value + added;
          sums[column] += value * value + added;
        }
        move_towards(of_rows_[row], sum / static_cast<double>(columns_), by);
      }
      for (std::size_t column = 0; column < columns_; ++column) {
        move_towards(means[column], sums[column] / static_cast<double>(rows_), by);
      }
      means = means.subspan(columns_);
    }
  }

  /// Returns the estimated squares. least: of the mean over rows by which they are divided.
  [[nodiscard]] std::vector<double> estimate(double least) const {
    std::vector<double> squares;
    std::span<const float> columns = of_columns_;
    for (std::size_t first = 0; first < of_rows_.size(); first += rows_) {
      const auto rows = of_rows_.subspan(first, rows_);
      const double mean = std::max(
          std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows_), least);
      for (const float row : rows) {
        for (const float column : columns.first(columns_)) {
          squares.push_back(static_cast<double>(row) * column / mean);  // may be below floats
        }
      }
      columns = columns.subspan(columns_);
    }
    return squares;
  }

 private:
  std::size_t rows_;
  std::size_t columns_;
  std::span<float> of_rows_;
  std::span<float> of_columns_;
};

/// The two kinds of Adafactor (arXiv 1804.04235): _single_tensor_adafactor of torch 2.13, and
/// Adafactor.step of transformers.
struct Adafactor {
  bool is_torchs;
  double decay_rate, eps1, eps2, threshold, beta1;
  bool scales, is_relative, warms_up;

  explicit Adafactor(const Rule& rule)
      : is_torchs(rule.facts().name == "adafactor"),
        decay_rate(rule[is_torchs ? "beta2_decay" : "decay_rate"]),
        eps1(rule["eps1"]),
        eps2(rule["eps2"]),
        threshold(rule[is_torchs ? "d" : "clip_threshold"]),
        beta1(is_torchs ? 0.0 : rule["beta1"]),
        scales(is_torchs || rule["scale_parameter"] != 0.0),
        is_relative(!is_torchs && rule["relative_step"] != 0.0),
        warms_up(!is_torchs && rule["warmup_init"] != 0.0) {}

  /// Factor of an update whose root of the mean square is 1.
  [[nodiscard]] double size(const WholeStep& step) const {
    const auto number = static_cast<double>(step.number);
    double size = step.lr;
    if (is_torchs) {
      size = std::min(step.lr, 1.0 / std::sqrt(number));
    } else if (is_relative) {
      size = std::min(warms_up ? 1e-6 * number : 1e-2, 1.0 / std::sqrt(number));
    }
    return scales ? size * std::max(eps2, step.rms) : size;
  }

  void compute(const WholeParameter& of, const WholeStep& step) const {
    if (of.values.empty()) {
      return;
    }
    const double by = std::pow(static_cast<double>(step.number), decay_rate);
    const double added = is_torchs ? 0.0 : eps1;
    std::vector<double> update = squares_of(of, by, added);
    for (std::size_t i = 0; i < update.size(); ++i) {
      const double square = is_torchs ? std::max(update[i], eps1 * eps1) : update[i];
      update[i] = of.values[i] / std::sqrt(square);
    }
    const double factor = size(step) / std::max(1.0, root_mean_square(update) / threshold);
    const std::span<float> first = beta1 > 0.0 ? of.states.back() : std::span<float>();
    for (std::size_t i = 0; i < update.size(); ++i) {
      of.values[i] = static_cast<float>(update[i] * factor);
      if (!first.empty()) {
        move_towards(first[i], of.values[i], 1.0 - beta1);
        of.values[i] = first[i];
      }
    }
  }

  [[nodiscard]] std::vector<double> squares_of(const WholeParameter& of, double by,
                                               double added) const {
    if (of.is_matrix) {
      return FactoredSquares(of, by, added).estimate(is_torchs ? eps1 : 0.0);
    }
    const std::span<float> squares = of.states[2];
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const double value = of.values[i];
      move_towards(squares[i], value * value + added, by);
    }
    return {squares.begin(), squares.end()};
  }

  [[nodiscard]] DirectedStep directed(const WholeStep& step) const {
    return step_along(1.0 - (is_torchs ? step.lr : size(step)) * step.weight_decay, 1.0);
  }
};

WholeRule adafactor(const Rule& rule, device::Device& /*device*/) {
  const Adafactor own(rule);
  return {numel_of, [own](const auto& of, const auto& step) { own.compute(of, step); },
          [own](const Shape& /*shape*/, const WholeStep& step) { return own.directed(step); },
          own.scales};
}

// --- SOAP and Shampoo ---

/// A matrix [rows][columns] in the products of this file, or its transposed.
struct Factor {
  const float* values;
  std::size_t rows;
  std::size_t columns;
  bool is_transposed = false;

  [[nodiscard]] Factor transposed() const { return {values, columns, rows, !is_transposed}; }
  [[nodiscard]] std::size_t row_step() const { return is_transposed ? 1 : columns; }
  [[nodiscard]] std::size_t column_step() const { return is_transposed ? rows : 1; }
};

/// A matrix with square factors at its left and its right side, of which each may be missing, and
/// their products, which the threads of a device compute.
class Sides {
 public:
  const std::size_t rows;
  const std::size_t columns;

  Sides(const Shape& shape, device::Device& device)
      : rows(static_cast<std::size_t>(shape[0])),
        columns(static_cast<std::size_t>(shape[1])),
        run_([&device](std::size_t parts, const auto& task) { device.run_parts(parts, task); }),
        multiply_(device.threads(), run_) {}
  Sides(const Sides&) = delete;
  Sides& operator=(const Sides&) = delete;

  [[nodiscard]] std::vector<float> product(const Factor& a, const Factor& b) {
    std::vector<float> c(a.rows * b.columns);
    multiply_({.a = a.values,
               .a_row = a.row_step(),
               .a_column = a.column_step(),
               .b = b.values,
               .b_row = b.row_step(),
               .b_column = b.column_step(),
               .c = c.data(),
               .rows = a.rows,
               .columns = b.columns,
               .inner = a.columns});
    return c;
  }
  [[nodiscard]] std::size_t size(bool is_left) const { return is_left ? rows : columns; }
  [[nodiscard]] Factor matrix(std::span<const float> values) const {
    return {values.data(), rows, columns};
  }
  /// left [^T] * values * right [^T].
  [[nodiscard]] std::vector<float> apply(std::span<const float> left, std::span<const float> values,
                                         std::span<const float> right, bool left_transposed,
                                         bool right_transposed) {
    std::vector<float> result(values.begin(), values.end());
    if (!left.empty()) {
      const Factor own{left.data(), rows, rows};
      result = product(left_transposed ? own.transposed() : own, matrix(result));
    }
    if (!right.empty()) {
      const Factor own{right.data(), columns, columns};
      result = product(matrix(result), right_transposed ? own.transposed() : own);
    }
    return result;
  }
  /// G G^T at the left, G^T G at the right.
  [[nodiscard]] std::vector<float> gram(std::span<const float> values, bool is_left) {
    const Factor own = matrix(values);
    return is_left ? product(own, own.transposed()) : product(own.transposed(), own);
  }

 private:
  RunParts run_;
  Multiplier multiply_;
};

std::vector<double> widened(std::span<const float> values) {
  return {values.begin(), values.end()};
}

/// Number of multiply-adds of a step, without those that come once in `frequency` steps, and with
/// `dense` times the cube of a side for these.
std::int64_t cost_of_sides(const Shape& shape, double largest, double frequency, double dense) {
  const auto rows = static_cast<double>(shape[0]);
  const auto columns = static_cast<double>(shape[1]);
  double cost = rows * columns;
  for (const double side : {rows, columns}) {
    if (side <= largest) {
      cost += 4.0 * rows * columns * side + dense * side * side * side / frequency;
    }
  }
  return static_cast<std::int64_t>(cost);
}

/// SOAP (arXiv 2409.11321, algorithm 3), as the authors' soap.py (github.com/nikhilvyas/SOAP): the
/// first step makes the basis and leaves the weights; the decay follows the update. exp_avg is kept
/// in the basis of the parameter, with the same results.
struct Soap {
  double beta1, beta2, shampoo_beta, eps;
  std::int64_t frequency;
  device::Device* device;

  Soap(const Rule& rule, device::Device& on)
      : beta1(rule["beta1"]),
        beta2(rule["beta2"]),
        shampoo_beta(rule["shampoo_beta"]),
        eps(rule["eps"]),
        frequency(static_cast<std::int64_t>(rule["precondition_frequency"])),
        device(&on) {}

  void compute(const WholeParameter& of, const WholeStep& step) const {
    Sides sides(of.shape, *device);
    const std::vector<float> gradient(of.values.begin(), of.values.end());
    if (step.number == 1) {
      std::ranges::fill(of.values, 0.0F);
    } else {
      update(of, sides, gradient);
    }
    for (const bool is_left : {true, false}) {
      const std::span<float> gram = of.states[is_left ? 2 : 3];
      if (gram.empty()) {
        continue;
      }
      const std::vector<float> added = sides.gram(gradient, is_left);
      for (std::size_t i = 0; i < gram.size(); ++i) {
        move_towards(gram[i], added[i], 1.0 - shampoo_beta);
      }
      if (step.number == 1) {
        first_basis(sides.size(is_left), gram, of.states[is_left ? 4 : 5]);
      } else if ((step.number - 1) % frequency == 0) {
        next_basis(of, sides, is_left);
      }
    }
  }

  /// Adam in the basis.
  void update(const WholeParameter& of, Sides& sides, std::span<const float> gradient) const {
    const std::span<float> average = of.states[0];
    const std::span<float> squares = of.states[1];
    const std::span<float> left = of.states[4];
    const std::span<float> right = of.states[5];
    const auto projected = sides.apply(left, gradient, right, true, false);
    for (std::size_t i = 0; i < average.size(); ++i) {
      move_towards(average[i], gradient[i], 1.0 - beta1);
      const double value = projected[i];
      move_towards(squares[i], value * value, 1.0 - beta2);
    }
    auto direction = sides.apply(left, average, right, true, false);
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = static_cast<float>(direction[i] / (std::sqrt(squares[i]) + eps));
    }
    std::ranges::copy(sides.apply(left, direction, right, false, true), of.values.begin());
  }

  static void store_columns(const std::vector<double>& rows, std::size_t size,
                            std::span<float> basis) {
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t k = 0; k < size; ++k) {
        basis[k * size + i] = static_cast<float>(rows[i * size + k]);
      }
    }
  }

  static void first_basis(std::size_t size, std::span<const float> gram, std::span<float> basis) {
    store_columns(kernels::symmetric_eigen(widened(gram), size).vectors, size, basis);
  }

  /// One power iteration and a QR decomposition, with the columns in the order of their estimated
  /// eigenvalues.
  static void next_basis(const WholeParameter& of, Sides& sides, bool is_left) {
    const std::size_t size = sides.size(is_left);
    const std::span<float> gram = of.states[is_left ? 2 : 3];
    const std::span<float> basis = of.states[is_left ? 4 : 5];
    const auto power = sides.product({gram.data(), size, size}, {basis.data(), size, size});
    std::vector<double> estimates(size);
    for (std::size_t i = 0; i < power.size(); ++i) {
      estimates[i % size] += static_cast<double>(basis[i]) * power[i];
    }
    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return estimates[a] > estimates[b]; });
    reorder(of.states[1], sides, order, is_left);
    std::vector<double> rows(size * size);
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t k = 0; k < size; ++k) {
        rows[i * size + k] = power[k * size + order[i]];
      }
    }
    kernels::orthonormalize_rows(rows, size);
    store_columns(rows, size, basis);
  }

  /// Puts the rows (`is_left`) or columns of exp_avg_sq in a new order.
  static void reorder(std::span<float> squares, const Sides& sides,
                      const std::vector<std::size_t>& order, bool is_left) {
    const std::vector<float> before(squares.begin(), squares.end());
    for (std::size_t row = 0; row < sides.rows; ++row) {
      for (std::size_t column = 0; column < sides.columns; ++column) {
        squares[row * sides.columns + column] = is_left
                                                    ? before[order[row] * sides.columns + column]
                                                    : before[row * sides.columns + order[column]];
      }
    }
  }

  [[nodiscard]] DirectedStep directed(const WholeStep& step) const {
    if (step.number == 1) {
      return step_along(1.0, 0.0);
    }
    const auto number = static_cast<double>(step.number - 1);
    const double size =
        step.lr * std::sqrt(1.0 - std::pow(beta2, number)) / (1.0 - std::pow(beta1, number));
    return step_along(decay_of(step), decay_of(step) * size);
  }
};

WholeRule soap(const Rule& rule, device::Device& device) {
  const Soap own(rule, device);
  return {[largest = rule[kLargestSide], frequency = rule["precondition_frequency"]](
              const Shape& shape) { return cost_of_sides(shape, largest, frequency, 4.0); },
          [own](const auto& of, const auto& step) { own.compute(of, step); },
          [own](const Shape& /*shape*/, const WholeStep& step) { return own.directed(step); }};
}

/// Shampoo (arXiv 1802.09568, algorithm 1): L^(-1/4) G R^(-1/4), with L and R from eps on the
/// diagonal; of a matrix with one side too large for a square state the root of the other one. The
/// momentum is that of torch.optim.SGD, of the result.
struct Shampoo {
  double momentum, eps;
  std::int64_t frequency;
  device::Device* device;

  Shampoo(const Rule& rule, device::Device& on)
      : momentum(rule["momentum"]),
        eps(rule["eps"]),
        frequency(static_cast<std::int64_t>(rule["precondition_frequency"])),
        device(&on) {}

  void compute(const WholeParameter& of, const WholeStep& step) const {
    Sides sides(of.shape, *device);
    const double power = of.states[0].empty() || of.states[1].empty() ? -0.5 : -0.25;
    for (const bool is_left : {true, false}) {
      const std::span<float> sum = of.states[is_left ? 0 : 1];
      if (sum.empty()) {
        continue;
      }
      const std::size_t size = sides.size(is_left);
      const std::vector<float> added = sides.gram(of.values, is_left);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] +=
            added[i] + (step.number == 1 && i % (size + 1) == 0 ? static_cast<float>(eps) : 0.0F);
      }
      if ((step.number - 1) % frequency == 0) {
        set_power(sum, size, power, of.states[is_left ? 2 : 3]);
      }
    }
    std::ranges::copy(sides.apply(of.states[2], of.values, of.states[3], false, false),
                      of.values.begin());
    if (momentum > 0.0) {
      const std::span<float> velocity = of.states[4];
      for (std::size_t i = 0; i < velocity.size(); ++i) {
        velocity[i] = static_cast<float>(momentum * velocity[i] + of.values[i]);
      }
      std::ranges::copy(velocity, of.values.begin());
    }
  }

  /// to = sum^power, with eigenvalues of at least eps.
  void set_power(std::span<const float> sum, std::size_t size, double power,
                 std::span<float> to) const {
    const kernels::Eigen eigen = kernels::symmetric_eigen(widened(sum), size);
    std::vector<double> result(size * size);
    for (std::size_t v = 0; v < size; ++v) {
      const std::span vector(eigen.vectors.data() + v * size, size);
      const double value = std::pow(std::max(eigen.values[v], eps), power);
      for (std::size_t i = 0; i < size; ++i) {
        for (std::size_t k = 0; k < size; ++k) {
          result[i * size + k] += value * vector[i] * vector[k];
        }
      }
    }
    std::ranges::transform(result, to.begin(),
                           [](double each) { return static_cast<float>(each); });
  }
};

WholeRule shampoo(const Rule& rule, device::Device& device) {
  const Shampoo own(rule, device);
  return {[largest = rule[kLargestSide], frequency = rule["precondition_frequency"]](
              const Shape& shape) { return cost_of_sides(shape, largest, frequency, 12.0); },
          [own](const auto& of, const auto& step) { own.compute(of, step); },
          [](const Shape& /*shape*/, const WholeStep& step) {
            return step_along(decay_of(step), step.lr);
          }};
}

}  // namespace

WholeRule whole_rule_of(const Rule& rule, device::Device& device) {
  const std::string_view name = rule.facts().name;
  return name == "muon"      ? muon(rule, device)
         : name == "soap"    ? soap(rule, device)
         : name == "shampoo" ? shampoo(rule, device)
                             : adafactor(rule, device);
}

WholeRule whole_rule_of(const MatrixRule& rule) {
  const auto compute = [update = rule.update](const WholeParameter& of, const WholeStep& step) {
    OwnedMatrix matrix{.name = std::string(of.name),
                       .rows = of.shape[0],
                       .columns = of.shape[1],
                       .step = step.number,
                       .lr = step.lr,
                       .weight_decay = step.weight_decay,
                       .values = of.values.data()};
    for (const std::span<float> state : of.states) {
      matrix.states.push_back(state.data());
    }
    update(matrix);
  };
  return {[](const Shape& shape) { return shape[0] * shape[1] * std::min(shape[0], shape[1]); },
          compute,
          [](const Shape& /*shape*/, const WholeStep& step) {
            return step_along(decay_of(step), step.lr);
          }};
}

std::vector<Rule::OwnedState> owned_states(const MatrixRule& rule, const Shape& shape) {
  constexpr std::array kShapes = {StateShape::whole, StateShape::rows, StateShape::columns,
                                  StateShape::rows_by_rows, StateShape::columns_by_columns};
  std::vector<Rule::OwnedState> all;
  for (const auto& [name, of] : rule.states) {
    all.push_back({name, state_shape(kShapes.at(static_cast<std::size_t>(of)), shape), true});
  }
  return all;
}

}  // namespace acc::optim
