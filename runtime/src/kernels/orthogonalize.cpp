// SPDX-License-Identifier: Apache-2.0
#include "kernels/orthogonalize.hpp"

#include "kernels/kernels.hpp"
#include "kernels/multiplier.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace acc::kernels {
namespace {

// DEFAULT_A, DEFAULT_B and DEFAULT_C of torch/optim/_muon.py of torch 2.13.
constexpr float kLinear = 3.4445F;
constexpr float kCubic = -4.7750F;
constexpr float kQuintic = 2.0315F;

/// Rows and columns that are moved together: a cache line.
constexpr std::size_t kSide = 16;

void transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  for (std::size_t i = 0; i < rows; i += kSide) {
    for (std::size_t j = 0; j < columns; j += kSide) {
      for (std::size_t r = i; r < std::min(i + kSide, rows); ++r) {
        for (std::size_t c = j; c < std::min(j + kSide, columns); ++c) {
          to[c * rows + r] = from[r * columns + c];
        }
      }
    }
  }
}

/// Copies the elements below the diagonal of [size][size] to those above it.
void mirror(float* matrix, std::size_t size) {
  for (std::size_t i = 0; i < size; i += kSide) {
    for (std::size_t j = 0; j <= i; j += kSide) {
      for (std::size_t r = i; r < std::min(i + kSide, size); ++r) {
        for (std::size_t c = j; c < std::min(j + kSide, r); ++c) {
          matrix[c * size + r] = matrix[r * size + c];
        }
      }
    }
  }
}

/// Steps after which the product of all polynomials is applied to the matrix. In float32 the
/// rounding errors of small eigenvalues of the Gram matrix, below 1e-7, grow by the factor 12 in
/// each step.
constexpr int kStepsAtOnce = 5;

/// Numbers of multiply-adds of some steps on a matrix [m][n], divided by m * m.
std::int64_t direct_cost(std::int64_t m, std::int64_t n, int steps) {
  return steps * (3 * n + m) / 2;
}
std::int64_t gram_cost(std::int64_t m, std::int64_t n, int steps) {
  return 3 * n / 2 + (4 * steps - 3) * m / 2;
}

/// The iteration on a matrix X [m][n] with m <= n. Each step is
///   G = X X^T,  P = b G + c G G,  X = a X + P X.
/// G and P are symmetric.
class Iteration {
 public:
  Iteration(std::vector<float> x, std::size_t m, std::size_t n, Multiplier& multiply)
      : m_(m),
        n_(n),
        multiply_(multiply),
        x_(std::move(x)),
        next_(m * n),
        gram_(m * m),
        polynomial_(m * m) {}

  void run(int steps) {
    const auto m = static_cast<std::int64_t>(m_);
    const auto n = static_cast<std::int64_t>(n_);
    for (int done = 0; done < steps; done += kStepsAtOnce) {
      const int count = std::min(kStepsAtOnce, steps - done);
      if (gram_cost(m, n, count) < direct_cost(m, n, count)) {
        run_on_gram(count);
      } else {
        run_directly(count);
      }
    }
  }

  [[nodiscard]] const std::vector<float>& result() const noexcept { return x_; }

 private:
  void run_directly(int steps) {
    for (int step = 0; step < steps; ++step) {
      compute_gram();
      compute_polynomial();
      multiply_x(polynomial_, x_.data(), kLinear);
    }
  }

  /// The same in fewer operations for a wide matrix. With P = a I + b G + c G G, the next G is P G
  /// P, and X after some steps is the product Q of their P times X. All these matrices are
  /// polynomials of the first G: they are symmetric, and their products too.
  void run_on_gram(int steps) {
    std::vector<float> product;
    std::vector<float> other(m_ * m_);
    compute_gram();
    for (int step = 0; step < steps; ++step) {
      compute_polynomial();
      for (std::size_t i = 0; i < m_; ++i) {
        polynomial_[i * m_ + i] += kLinear;
      }
      if (step == 0) {
        product = polynomial_;
      } else {
        multiply_symmetric(polynomial_, product, other);
        product.swap(other);
      }
      if (step + 1 < steps) {
        multiply_symmetric(polynomial_, gram_, other);
        multiply_symmetric(polynomial_, other, gram_);
      }
    }
    multiply_x(product, nullptr, 0.0F);
  }

  void compute_gram() {
    multiply_({.a = x_.data(),
               .a_row = n_,
               .b = x_.data(),
               .b_row = 1,
               .b_column = n_,
               .c = gram_.data(),
               .rows = m_,
               .columns = m_,
               .inner = n_,
               .symmetric = true});
    mirror(gram_.data(), m_);
  }

  void compute_polynomial() {
    multiply_({.a = gram_.data(),
               .a_row = 1,  // symmetric; so the rows of a block are next to each other
               .a_column = m_,
               .b = gram_.data(),
               .b_row = m_,
               .added = gram_.data(),
               .c = polynomial_.data(),
               .rows = m_,
               .columns = m_,
               .inner = m_,
               .alpha = kQuintic,
               .beta = kCubic,
               .symmetric = true});
    mirror(polynomial_.data(), m_);
  }

  /// to = a b, which is symmetric.
  void multiply_symmetric(const std::vector<float>& a, const std::vector<float>& b,
                          std::vector<float>& to) {
    multiply_({.a = a.data(),
               .a_row = 1,
               .a_column = m_,
               .b = b.data(),
               .b_row = m_,
               .c = to.data(),
               .rows = m_,
               .columns = m_,
               .inner = m_,
               .symmetric = true});
    mirror(to.data(), m_);
  }

  /// X = factor X + beta added.
  void multiply_x(const std::vector<float>& factor, const float* added, float beta) {
    multiply_({.a = factor.data(),
               .a_row = 1,
               .a_column = m_,
               .b = x_.data(),
               .b_row = n_,
               .added = added,
               .c = next_.data(),
               .rows = m_,
               .columns = n_,
               .inner = m_,
               .beta = beta});
    x_.swap(next_);
  }

  std::size_t m_;
  std::size_t n_;
  Multiplier& multiply_;
  std::vector<float> x_;
  std::vector<float> next_;
  std::vector<float> gram_;
  std::vector<float> polynomial_;
};

}  // namespace

// The iteration is on the matrix or its transpose, which has fewer rows than columns.
void orthogonalize(float* matrix, std::size_t rows, std::size_t columns, int steps, float eps,
                   int threads, const RunParts& run) {
  const std::size_t m = std::min(rows, columns);
  const std::size_t n = std::max(rows, columns);
  if (m == 0) {
    return;
  }
  std::vector<float> x(m * n);
  if (rows > columns) {
    transpose(matrix, rows, columns, x.data());
  } else {
    std::copy_n(matrix, m * n, x.data());
  }
  const auto norm = static_cast<float>(std::sqrt(kernels().squared_norm(x.data(), m * n)));
  for (float& value : x) {
    value /= norm > eps || std::isnan(norm) ? norm : eps;
  }
  Multiplier multiply(threads, run);
  Iteration iteration(std::move(x), m, n, multiply);
  iteration.run(steps);
  if (rows > columns) {
    transpose(iteration.result().data(), columns, rows, matrix);
  } else {
    std::ranges::copy(iteration.result(), matrix);
  }
}

std::int64_t orthogonalize_cost(std::int64_t rows, std::int64_t columns, int steps) noexcept {
  const std::int64_t m = std::min(rows, columns);
  const std::int64_t n = std::max(rows, columns);
  const auto of_chunk = [=](int count) {
    return std::min(direct_cost(m, n, count), gram_cost(m, n, count));
  };
  const int rest = steps % kStepsAtOnce;
  return m * m * (steps / kStepsAtOnce * of_chunk(kStepsAtOnce) + (rest > 0 ? of_chunk(rest) : 0));
}

}  // namespace acc::kernels
