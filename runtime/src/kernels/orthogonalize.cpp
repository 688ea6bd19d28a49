// SPDX-License-Identifier: Apache-2.0
#include "kernels/orthogonalize.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace acc::kernels {
namespace {

// DEFAULT_A, DEFAULT_B and DEFAULT_C of torch/optim/_muon.py of torch 2.13.
constexpr float kLinear = 3.4445F;
constexpr float kCubic = -4.7750F;
constexpr float kQuintic = 2.0315F;

void transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  constexpr std::size_t kSide = 16;  // a cache line
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
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      matrix[j * size + i] = matrix[i * size + j];
    }
  }
}

/// Multiplies on several threads, each with a part of the columns and scratch memory of its own.
class Multiplier {
 public:
  Multiplier(int threads, const RunParts& run)
      : threads_(static_cast<std::size_t>(threads)), run_(run), scratch_(threads_) {}

  void operator()(const Product& product) {
    constexpr std::size_t kBlock = Product::kBlockColumns;
    const std::size_t blocks = (product.columns + kBlock - 1) / kBlock;
    const std::size_t size = (blocks + threads_ - 1) / threads_ * kBlock;
    run_((product.columns + size - 1) / size, [&](std::size_t part) {
      Product own = product;
      std::vector<float>& scratch = scratch_[part];
      scratch.resize(std::max(scratch.size(), Product::scratch_numel(own.rows, own.inner)));
      own.scratch = scratch.data();
      kernels().multiply(own, part * size, std::min(size, own.columns - part * size));
    });
  }

 private:
  std::size_t threads_;
  const RunParts& run_;
  std::vector<std::vector<float>> scratch_;
};

}  // namespace

// With X = the matrix (or its transpose, so that it has fewer rows than columns), each step is
//   G = X X^T,  P = b G + c G G,  X = a X + P X.
// G and P are symmetric.
void orthogonalize(float* matrix, std::size_t rows, std::size_t columns, int steps, float eps,
                   int threads, const RunParts& run) {
  const std::size_t m = std::min(rows, columns);
  const std::size_t n = std::max(rows, columns);
  if (m == 0) {
    return;
  }
  std::vector<float> now(m * n);
  std::vector<float> next(m * n);
  std::vector<float> gram(m * m);
  std::vector<float> polynomial(m * m);
  if (rows > columns) {
    transpose(matrix, rows, columns, now.data());
  } else {
    std::copy_n(matrix, m * n, now.data());
  }
  const auto norm = static_cast<float>(std::sqrt(kernels().squared_norm(now.data(), m * n)));
  for (float& value : now) {
    value /= norm > eps || std::isnan(norm) ? norm : eps;
  }
  Multiplier multiply(threads, run);
  for (int step = 0; step < steps; ++step) {
    multiply({.a = now.data(),
              .a_row = n,
              .b = now.data(),
              .b_row = 1,
              .b_column = n,
              .c = gram.data(),
              .rows = m,
              .columns = m,
              .inner = n,
              .symmetric = true});
    mirror(gram.data(), m);
    multiply({.a = gram.data(),
              .a_row = m,
              .b = gram.data(),
              .b_row = m,
              .added = gram.data(),
              .c = polynomial.data(),
              .rows = m,
              .columns = m,
              .inner = m,
              .alpha = kQuintic,
              .beta = kCubic,
              .symmetric = true});
    mirror(polynomial.data(), m);
    multiply({.a = polynomial.data(),
              .a_row = m,
              .b = now.data(),
              .b_row = n,
              .added = now.data(),
              .c = next.data(),
              .rows = m,
              .columns = n,
              .inner = m,
              .beta = kLinear});
    now.swap(next);
  }
  if (rows > columns) {
    transpose(now.data(), columns, rows, matrix);
  } else {
    std::copy(now.begin(), now.end(), matrix);
  }
}

std::int64_t orthogonalize_cost(std::int64_t rows, std::int64_t columns, int steps) noexcept {
  const std::int64_t m = std::min(rows, columns);
  const std::int64_t n = std::max(rows, columns);
  return steps * m * m * (3 * n + m) / 2;
}

}  // namespace acc::kernels
