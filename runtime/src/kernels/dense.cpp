// SPDX-License-Identifier: Apache-2.0
#include "kernels/dense.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

namespace acc::kernels {
namespace {

using Row = std::span<double>;
using ConstRow = std::span<const double>;

Row row_of(std::vector<double>& matrix, std::size_t size, std::size_t number) {
  return Row(matrix).subspan(number * size, size);
}

double dot(ConstRow left, ConstRow right) {
  return std::inner_product(left.begin(), left.end(), right.begin(), 0.0);
}

void add_scaled(Row to, double factor, ConstRow from) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] += factor * from[i];
  }
}

/// The reflection x - scale * (v x) v that makes all but the first element of a vector 0.
struct Reflection {
  std::vector<double> v;
  double scale = 0.0;  ///< 0: it changes nothing
  double first = 0.0;  ///< element that is left of the vector

  explicit Reflection(ConstRow of) : v(of.begin(), of.end()), first(of.front()) {
    const double norm = std::sqrt(dot(v, v));
    if (norm > 0.0) {
      first = v.front() > 0.0 ? -norm : norm;
      v.front() -= first;
      scale = 2.0 / dot(v, v);
    }
  }
  void apply(Row to) const { add_scaled(to, -scale * dot(v, to), v); }
};

/// Reduces a symmetric matrix to its diagonal and the one beside it, and applies the reflections
/// to the rows of a unit matrix.
struct ThreeDiagonals {
  std::vector<double> main;
  std::vector<double> beside;   ///< [size]; the last is 0
  std::vector<double> vectors;  ///< rows: the basis in which the matrix has three diagonals

  ThreeDiagonals(std::vector<double> a, std::size_t size)
      : main(size), beside(size), vectors(size * size) {
    for (std::size_t i = 0; i < size; ++i) {
      vectors[i * size + i] = 1.0;
    }
    for (std::size_t k = 0; k + 1 < size; ++k) {
      const std::size_t rest = size - k - 1;
      const Reflection reflection(row_of(a, size, k).last(rest));
      beside[k] = reflection.first;
      reflect_block(a, size, reflection);
      reflect_rows(size, reflection);
    }
    for (std::size_t i = 0; i < size; ++i) {
      main[i] = a[i * size + i];
    }
  }

 private:
  /// The last rows and columns H A H = A - v w - w v, with w = s A v - s^2 (v A v) v / 2.
  static void reflect_block(std::vector<double>& a, std::size_t size,
                            const Reflection& reflection) {
    const ConstRow v = reflection.v;
    const auto row = [&](std::size_t i) {
      return row_of(a, size, size - v.size() + i).last(v.size());
    };
    std::vector<double> w(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) {
      w[i] = reflection.scale * dot(row(i), v);
    }
    add_scaled(w, -0.5 * reflection.scale * dot(w, v), v);
    for (std::size_t i = 0; i < v.size(); ++i) {
      add_scaled(row(i), -v[i], w);
      add_scaled(row(i), -w[i], v);
    }
  }

  /// The last rows of the basis, H times them.
  void reflect_rows(std::size_t size, const Reflection& reflection) {
    const ConstRow v = reflection.v;
    const auto row = [&](std::size_t i) { return row_of(vectors, size, size - v.size() + i); };
    std::vector<double> sum(size);
    for (std::size_t i = 0; i < v.size(); ++i) {
      add_scaled(sum, v[i], row(i));
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
      add_scaled(row(i), -reflection.scale * v[i], sum);
    }
  }
};

/// One step of the implicit QL algorithm with Wilkinson's shift on elements [first, last].
void ql_step(ThreeDiagonals& t, std::size_t first, std::size_t last) {
  auto& main = t.main;
  auto& beside = t.beside;
  const std::size_t size = main.size();
  const double half = (main[first + 1] - main[first]) / (2.0 * beside[first]);
  const double root = std::hypot(half, 1.0);
  double chased = main[last] - main[first] + beside[first] / (half + (half < 0.0 ? -root : root));
  double sine = 1.0;
  double cosine = 1.0;
  double shift = 0.0;
  for (std::size_t i = last; i-- > first;) {
    const double outer = sine * beside[i];
    const double inner = cosine * beside[i];
    const double length = std::hypot(outer, chased);
    beside[i + 1] = length;
    if (length == 0.0) {  // the matrix has come apart
      main[i + 1] -= shift;
      beside[last] = 0.0;
      return;
    }
    sine = outer / length;
    cosine = chased / length;
    const double next = main[i + 1] - shift;
    const double mixed = (main[i] - next) * sine + 2.0 * cosine * inner;
    shift = sine * mixed;
    main[i + 1] = next + shift;
    chased = cosine * mixed - inner;
    const Row upper = row_of(t.vectors, size, i);
    const Row lower = row_of(t.vectors, size, i + 1);
    for (std::size_t k = 0; k < size; ++k) {
      const double before = lower[k];
      lower[k] = sine * upper[k] + cosine * before;
      upper[k] = cosine * upper[k] - sine * before;
    }
  }
  main[first] -= shift;
  beside[first] = chased;
  beside[last] = 0.0;
}

/// Steps until the elements beside the diagonal are 0. It takes two for an eigenvalue; the limit is
/// for values that do not converge.
void diagonalize(ThreeDiagonals& t) {
  constexpr int kMostSteps = 100;
  const std::size_t size = t.main.size();
  for (std::size_t first = 0; first < size; ++first) {
    for (int step = 0; step < kMostSteps; ++step) {
      std::size_t last = first;
      while (last + 1 < size &&
             std::abs(t.beside[last]) > std::numeric_limits<double>::epsilon() *
                                            (std::abs(t.main[last]) + std::abs(t.main[last + 1]))) {
        ++last;
      }
      if (last == first) {
        break;
      }
      ql_step(t, first, last);
    }
  }
}

bool is_finite(ConstRow values) {
  return std::ranges::all_of(values, [](double each) { return std::isfinite(each); });
}

}  // namespace

Eigen symmetric_eigen(std::vector<double> matrix, std::size_t size) {
  if (!is_finite(matrix)) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {std::vector<double>(size, nan), std::vector<double>(size * size, nan)};
  }
  ThreeDiagonals t(std::move(matrix), size);
  diagonalize(t);
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return t.main[i]; });
  Eigen eigen;
  for (const std::size_t i : order) {
    eigen.values.push_back(t.main[i]);
    const Row vector = row_of(t.vectors, size, i);
    eigen.vectors.insert(eigen.vectors.end(), vector.begin(), vector.end());
  }
  return eigen;
}

void orthonormalize_rows(std::vector<double>& matrix, std::size_t size) {
  if (!is_finite(matrix)) {
    std::ranges::fill(matrix, std::numeric_limits<double>::quiet_NaN());
    return;
  }
  std::vector<Reflection> reflections;
  for (std::size_t k = 0; k < size; ++k) {
    reflections.emplace_back(row_of(matrix, size, k).last(size - k));
    for (std::size_t i = k + 1; i < size; ++i) {
      reflections.back().apply(row_of(matrix, size, i).last(size - k));
    }
  }
  for (std::size_t i = 0; i < size; ++i) {
    const Row row = row_of(matrix, size, i);
    std::ranges::fill(row, 0.0);
    row[i] = 1.0;
    for (std::size_t k = i + 1; k-- > 0;) {
      reflections[k].apply(row.last(size - k));
    }
  }
}

}  // namespace acc::kernels
