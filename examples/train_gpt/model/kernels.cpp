// SPDX-License-Identifier: Apache-2.0
#include "model/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

// Plain loops that the compiler vectorises for each instruction set (the build adds -O3 and
// -fopenmp-simd to this file). With sanitizers only the base version is compiled, because they
// would instrument the function that selects the version, which runs before the sanitizer is
// initialised.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SIMD
#endif
#define ALWAYS_INLINE [[gnu::always_inline]] inline

namespace train_gpt {
namespace {

/// Computes e^x with x = n ln 2 + r and a polynomial in r, as expf of the Cephes library. Relative
/// error below 1e-7.
ALWAYS_INLINE float fast_exp(float x) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  constexpr float kRoundingShift = 12582912.0f;
  // Keeps the result within the normal numbers; the exponent is added below without a check.
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float shifted = x * 1.44269504f + kRoundingShift;
  const float n = shifted - kRoundingShift;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, for accuracy
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + exponent);
}

// gelu(u) = 0.5 u (1 + tanh(a)) = u sigmoid(2a) with a = sqrt(2/pi) (u + 0.044715 u^3). The second
// form has no cancellation for large negative u.
constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

ALWAYS_INLINE float gelu_gate(float u) {
  return 1.0f / (1.0f + fast_exp(-kTwoRootTwoOverPi * (u + kCubic * u * u * u)));
}

/// Rounds to nearest even. A NaN stays a NaN: rounding could turn its mantissa into infinity.
ALWAYS_INLINE std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
}

ALWAYS_INLINE float from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

ALWAYS_INLINE float row_maximum(const float* x, std::int64_t count) {
  float maximum = std::numeric_limits<float>::lowest();
#pragma omp simd reduction(max : maximum)
  for (std::int64_t i = 0; i < count; ++i) {
    maximum = x[i] > maximum ? x[i] : maximum;
  }
  return maximum;
}

/// Replaces x by exp(scale * (x - maximum)). Returns the sum.
ALWAYS_INLINE float exponentiate(float* x, float scale, float maximum, std::int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = fast_exp(scale * (x[i] - maximum));
    sum += x[i];
  }
  return sum;
}

ALWAYS_INLINE void normalize_row(const float* x, const float* gamma, const float* beta, float mean,
                                 float rstd, float* z, std::int64_t channels) {
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) {
    z[c] = (x[c] - mean) * rstd * gamma[c] + beta[c];
  }
}

}  // namespace

SIMD void layernorm_forward(const float* x, const float* gamma, const float* beta, float eps,
                            float* z, RowStats stats, std::int64_t rows, std::int64_t channels) {
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  for (std::int64_t n = 0; n < rows; ++n, x += channels, z += channels) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < channels; ++c) {
      sum += x[c];
    }
    const float mean = sum * inverse_channels;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = 0; c < channels; ++c) {
      squares += (x[c] - mean) * (x[c] - mean);
    }
    const float rstd = 1.0f / std::sqrt(squares * inverse_channels + eps);
    stats.mean[n] = mean;
    stats.rstd[n] = rstd;
    normalize_row(x, gamma, beta, mean, rstd, z, channels);
  }
}

SIMD void layernorm_recompute(const float* x, const float* gamma, const float* beta, RowStats stats,
                              float* z, std::int64_t rows, std::int64_t channels) {
  for (std::int64_t n = 0; n < rows; ++n, x += channels, z += channels) {
    normalize_row(x, gamma, beta, stats.mean[n], stats.rstd[n], z, channels);
  }
}

SIMD void layernorm_backward(const float* x, const float* gamma, RowStats stats, const float* dz,
                             float* dx, float* dgamma, float* dbeta, std::int64_t rows,
                             std::int64_t channels) {
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  for (std::int64_t n = 0; n < rows; ++n, x += channels, dz += channels, dx += channels) {
    const float mean = stats.mean[n];
    const float rstd = stats.rstd[n];
    float sum = 0.0f;            // sum of d_xhat
    float sum_with_xhat = 0.0f;  // sum of d_xhat * xhat
#pragma omp simd reduction(+ : sum, sum_with_xhat)
    for (std::int64_t c = 0; c < channels; ++c) {
      const float xhat = (x[c] - mean) * rstd;
      dbeta[c] += dz[c];
      dgamma[c] += dz[c] * xhat;
      sum += dz[c] * gamma[c];
      sum_with_xhat += dz[c] * gamma[c] * xhat;
    }
    sum *= inverse_channels;
    sum_with_xhat *= inverse_channels;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float xhat = (x[c] - mean) * rstd;
      dx[c] += (dz[c] * gamma[c] - sum - xhat * sum_with_xhat) * rstd;
    }
  }
}

SIMD void gelu_forward(const float* u, const float* bias, float* h, std::int64_t rows,
                       std::int64_t channels) {
  for (std::int64_t n = 0; n < rows; ++n, u += channels, h += channels) {
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float value = u[c] + bias[c];
      h[c] = value * gelu_gate(value);
    }
  }
}

SIMD void gelu_backward(float* u_to_h, const float* bias, float* dh_to_du, float* dbias,
                        std::int64_t rows, std::int64_t channels) {
  for (std::int64_t n = 0; n < rows; ++n, u_to_h += channels, dh_to_du += channels) {
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float u = u_to_h[c] + bias[c];
      const float gate = gelu_gate(u);
      const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * u * u);
      const float du = dh_to_du[c] * gate * (1.0f + u * (1.0f - gate) * slope);
      u_to_h[c] = u * gate;
      dh_to_du[c] = du;
      dbias[c] += du;
    }
  }
}

SIMD double cross_entropy(float* logits, const std::int32_t* targets, float scale,
                          std::int64_t rows, std::int64_t vocab) {
  double loss = 0.0;
  for (std::int64_t n = 0; n < rows; ++n, logits += vocab) {
    const float maximum = row_maximum(logits, vocab);
    const float target_logit = logits[targets[n]];
    const float sum = exponentiate(logits, 1.0f, maximum, vocab);
    loss += std::log(static_cast<double>(sum)) + static_cast<double>(maximum - target_logit);
    const float factor = scale / sum;
#pragma omp simd
    for (std::int64_t v = 0; v < vocab; ++v) {
      logits[v] *= factor;
    }
    logits[targets[n]] -= scale;
  }
  return loss;
}

SIMD void causal_exponentials(float* scores, float scale, std::int64_t first_query,
                              float* inverse_sum, float* log_sum, std::int64_t queries,
                              std::int64_t keys) {
  for (std::int64_t q = 0; q < queries; ++q, scores += keys) {
    const std::int64_t visible = std::min(keys, first_query + q + 1);
    const float maximum = row_maximum(scores, visible);
    const float sum = exponentiate(scores, scale, maximum, visible);
    std::fill(scores + visible, scores + keys, 0.0f);
    inverse_sum[q] = 1.0f / sum;
    log_sum[q] = scale * maximum + std::log(sum);
  }
}

SIMD void causal_softmax_backward(float* scores_to_p, float* dp_to_ds, const float* log_sum,
                                  const float* delta, float scale, std::int64_t first_query,
                                  std::int64_t queries, std::int64_t keys) {
  for (std::int64_t q = 0; q < queries; ++q, scores_to_p += keys, dp_to_ds += keys) {
    const std::int64_t visible = std::min(keys, first_query + q + 1);
#pragma omp simd
    for (std::int64_t k = 0; k < visible; ++k) {
      const float p = fast_exp(scale * scores_to_p[k] - log_sum[q]);
      scores_to_p[k] = p;
      dp_to_ds[k] = p * (dp_to_ds[k] - delta[q]) * scale;
    }
    std::fill(scores_to_p + visible, scores_to_p + keys, 0.0f);
    std::fill(dp_to_ds + visible, dp_to_ds + keys, 0.0f);
  }
}

SIMD void add_bias(float* out, const float* a, const float* bias, std::int64_t rows,
                   std::int64_t channels) {
  for (std::int64_t n = 0; n < rows; ++n, out += channels) {
    if (a == nullptr) {
      std::copy(bias, bias + channels, out);
      continue;
    }
    const float* row = a + n * channels;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      out[c] = row[c] + bias[c];
    }
  }
}

SIMD void add_column_sums(float* sums, const float* x, std::int64_t rows, std::int64_t channels) {
  for (std::int64_t n = 0; n < rows; ++n, x += channels) {
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      sums[c] += x[c];
    }
  }
}

SIMD void add(float* out, const float* x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] += x[i];
  }
}

SIMD void scale(float* x, float factor, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] *= factor;
  }
}

SIMD float dot(const float* a, const float* b, std::int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

SIMD void narrow(const float* from, std::uint16_t* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = to_bf16(from[i]);
  }
}

SIMD void widen(const std::uint16_t* from, float* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = from_bf16(from[i]);
  }
}

SIMD void add_widened(float* out, const std::uint16_t* x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] += from_bf16(x[i]);
  }
}

SIMD void add_narrowed(std::uint16_t* out, const float* x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = to_bf16(from_bf16(out[i]) + x[i]);
  }
}

}  // namespace train_gpt
