// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/multiplier.hpp"

#include <cstddef>
#include <cstdint>

namespace acc::kernels {

/// Replaces a matrix by one with about the same singular vectors, whose singular values are between
/// 0.7 and 1.2: `steps` steps of the Newton-Schulz iteration of Muon (kellerjordan.github.io/posts/
/// muon) with the coefficients of torch.optim.Muon, in float32 where torch rounds to bfloat16.
/// matrix: [rows][columns]. eps: smallest norm by which the matrix is divided first. threads: the
/// number for which the work is divided; the result does not depend on it.
void orthogonalize(float* matrix, std::size_t rows, std::size_t columns, int steps, float eps,
                   int threads, const RunParts& run);

/// The number of multiply-adds of `orthogonalize`, as a measure of its time.
std::int64_t orthogonalize_cost(std::int64_t rows, std::int64_t columns, int steps) noexcept;

}  // namespace acc::kernels
