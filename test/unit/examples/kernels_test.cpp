// SPDX-License-Identifier: Apache-2.0
#include "model/kernels.hpp"

#include "random_values.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

using namespace train_gpt;

// Sizes are not multiples of the vector length. The reference for each formula is in double
// precision.
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kChannels = 37;

double gelu(double u) {
  return 0.5 * u *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (u + 0.044715 * u * u * u)));
}

std::vector<double> layernorm(const float* x, const std::vector<float>& gamma,
                              const std::vector<float>& beta, double eps) {
  double mean = 0.0;
  double variance = 0.0;
  for (std::int64_t c = 0; c < kChannels; ++c) {
    mean += x[c] / static_cast<double>(kChannels);
  }
  for (std::int64_t c = 0; c < kChannels; ++c) {
    variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(kChannels);
  }
  std::vector<double> z;
  for (std::size_t c = 0; c < kChannels; ++c) {
    z.push_back((x[c] - mean) / std::sqrt(variance + eps) * gamma[c] + beta[c]);
  }
  return z;
}

}  // namespace

TEST_CASE("gelu and its derivative, from large negative to large positive values") {
  std::vector<float> u;
  for (int i = -400; i <= 400; ++i) {
    u.push_back(static_cast<float>(i) * 0.05f);
  }
  const auto count = static_cast<std::int64_t>(u.size());
  const std::vector<float> bias(u.size(), 0.25f);
  std::vector<float> h(u.size()), h_again = u, du(u.size(), 2.0f), dbias(u.size(), 1.0f);
  gelu_forward(u.data(), bias.data(), h.data(), 1, count);
  gelu_backward(h_again.data(), bias.data(), du.data(), dbias.data(), 1, count);
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double x = static_cast<double>(u[i]) + 0.25;
    const double slope = (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
    CHECK(h[i] == doctest::Approx(gelu(x)).epsilon(1e-6));
    CHECK(h_again[i] == h[i]);
    CHECK(du[i] == doctest::Approx(2.0 * slope).epsilon(1e-5));
    CHECK(dbias[i] == doctest::Approx(1.0 + 2.0 * slope).epsilon(1e-5));
  }
}

TEST_CASE("layernorm forward, recomputation and backward") {
  constexpr float kEps = 1e-3f;
  const auto x = random_values(kRows * kChannels, 1, 3.0);
  const auto gamma = random_values(kChannels, 2);
  const auto beta = random_values(kChannels, 3);
  const auto dz = random_values(kRows * kChannels, 4);
  std::vector<float> mean(kRows), rstd(kRows), z(x.size()), z_again(x.size());
  const RowStats stats{mean.data(), rstd.data()};
  layernorm_forward(x.data(), gamma.data(), beta.data(), kEps, z.data(), stats, kRows, kChannels);
  layernorm_recompute(x.data(), gamma.data(), beta.data(), stats, z_again.data(), kRows, kChannels);
  CHECK(z == z_again);

  std::vector<float> dx(x.size(), 0.5f), dgamma(kChannels, 0.0f), dbeta(kChannels, 0.0f);
  layernorm_backward(x.data(), gamma.data(), stats, dz.data(), dx.data(), dgamma.data(),
                     dbeta.data(), kRows, kChannels);
  for (std::int64_t n = 0; n < kRows; ++n) {
    const auto expected = layernorm(x.data() + n * kChannels, gamma, beta, kEps);
    std::vector<float> row(x.begin() + n * kChannels, x.begin() + (n + 1) * kChannels);
    for (std::size_t c = 0; c < kChannels; ++c) {
      const std::size_t i = static_cast<std::size_t>(n * kChannels) + c;
      CHECK(z[i] == doctest::Approx(expected[c]).epsilon(1e-5));

      double slope = 0.0;  // of sum(dz * z) with respect to x[i], by central difference
      for (const float step : {-0.01f, 0.01f}) {
        auto moved = row;
        moved[c] += step;
        const auto moved_z = layernorm(moved.data(), gamma, beta, kEps);
        const double distance = static_cast<double>(moved[c]) - static_cast<double>(row[c]);
        for (std::size_t k = 0; k < kChannels; ++k) {
          slope += dz[static_cast<std::size_t>(n * kChannels) + k] * (moved_z[k] - expected[k]) /
                   (2.0 * distance);
        }
      }
      CHECK(dx[i] == doctest::Approx(0.5 + slope).epsilon(1e-3));
    }
  }
  double dbeta_0 = 0.0;
  double dgamma_0 = 0.0;
  for (std::int64_t n = 0; n < kRows; ++n) {
    const auto i = static_cast<std::size_t>(n * kChannels);
    dbeta_0 += dz[i];
    dgamma_0 += dz[i] * (z[i] - beta[0]) / gamma[0];
  }
  CHECK(dbeta[0] == doctest::Approx(dbeta_0).epsilon(1e-5));
  CHECK(dgamma[0] == doctest::Approx(dgamma_0).epsilon(1e-4));
}

TEST_CASE("cross entropy replaces logits by their gradient") {
  const auto logits = random_values(kRows * kChannels, 5, 20.0);
  const std::vector<std::int32_t> targets = {0, 36, 7, 7, 20};
  auto gradient = logits;
  const double loss = cross_entropy(gradient.data(), targets.data(), 0.2f, kRows, kChannels);
  double expected_loss = 0.0;
  for (std::size_t n = 0; n < kRows; ++n) {
    double sum = 0.0;
    for (std::size_t v = 0; v < kChannels; ++v) {
      sum += std::exp(static_cast<double>(logits[n * kChannels + v]));
    }
    for (std::size_t v = 0; v < kChannels; ++v) {
      const double p = std::exp(static_cast<double>(logits[n * kChannels + v])) / sum;
      const double one_hot = static_cast<std::int32_t>(v) == targets[n] ? 1.0 : 0.0;
      CHECK(gradient[n * kChannels + v] == doctest::Approx(0.2 * (p - one_hot)).epsilon(1e-5));
    }
    const auto target = static_cast<std::size_t>(targets[n]);
    expected_loss += std::log(sum) - static_cast<double>(logits[n * kChannels + target]);
  }
  CHECK(loss == doctest::Approx(expected_loss).epsilon(1e-6));
}
