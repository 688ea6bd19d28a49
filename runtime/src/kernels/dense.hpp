// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace acc::kernels {

/// The eigenvectors of a symmetric matrix [size][size]: Householder's reduction to three diagonals
/// and the implicit QL algorithm (Golub and Van Loan, Matrix Computations, 8.3). A matrix that is
/// not finite has vectors and values of NaN.
struct Eigen {
  std::vector<double> values;   ///< [size], falling
  std::vector<double> vectors;  ///< [size][size], a vector in each row
};
Eigen symmetric_eigen(std::vector<double> matrix, std::size_t size);

/// Replaces the rows of a matrix [size][size] by orthonormal ones that span the same spaces in
/// order: the transposed Q of the QR decomposition of the transposed matrix, by Householder's
/// reflections. Rows that depend on those before them get any that complete the basis.
void orthonormalize_rows(std::vector<double>& matrix, std::size_t size);

}  // namespace acc::kernels
