// SPDX-License-Identifier: Apache-2.0
#include "model/attention.hpp"

#include "random_values.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace train_gpt;

namespace {

/// Computes causal attention by its definition. qkv: (B, T, 3, H, D), result: (B, T, H, D).
std::vector<double> reference(const AttentionShape& s, const std::vector<float>& qkv) {
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t which, std::int64_t h,
                      std::int64_t d) {
    const std::int64_t row = b * s.time + t;
    return static_cast<double>(
        qkv[static_cast<std::size_t>(((row * 3 + which) * s.heads + h) * s.head_dim + d)]);
  };
  std::vector<double> out;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t t = 0; t < s.time; ++t) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        std::vector<double> p;
        double sum = 0.0;
        for (std::int64_t key = 0; key <= t; ++key) {
          double score = 0.0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            score += at(b, t, 0, h, d) * at(b, key, 1, h, d);
          }
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(s.head_dim))));
          sum += p.back();
        }
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          double value = 0.0;
          for (std::int64_t key = 0; key <= t; ++key) {
            value += p[static_cast<std::size_t>(key)] / sum * at(b, key, 2, h, d);
          }
          out.push_back(value);
        }
      }
    }
  }
  return out;
}

double weighted_sum(const std::vector<double>& out, const std::vector<float>& weights) {
  double sum = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    sum += out[i] * weights[i];
  }
  return sum;
}

}  // namespace

TEST_CASE(
    "attention equals its definition, at lengths below, equal to and above a block of queries") {
  for (const std::int64_t time : {1, 5, 64, 67, 130}) {
    CAPTURE(time);
    const AttentionShape shape{.batch = 2, .time = time, .heads = 2, .head_dim = 6};
    const std::int64_t rows = shape.batch * time;
    const auto qkv = random_values(rows * 3 * shape.channels(), 11, 1.5);
    const auto d_out = random_values(rows * shape.channels(), 12);
    std::vector<float> out(d_out.size()), dqkv(qkv.size(), 99.0f);
    std::vector<float> log_sum(static_cast<std::size_t>(rows * shape.heads));
    AttentionScratch scratch(time);
    attention_forward(shape, qkv.data(), out.data(), log_sum.data(), scratch);
    attention_backward(shape, qkv.data(), out.data(), log_sum.data(), d_out.data(), dqkv.data(),
                       scratch);

    const auto expected = reference(shape, qkv);
    double worst = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      worst = std::max(worst, std::abs(out[i] - expected[i]));
    }
    CHECK(worst < 2e-6);
    for (std::size_t i = 3; i < qkv.size(); i += qkv.size() / 17 + 1) {  // a sample
      double slope = 0.0;
      for (const float step : {-0.01f, 0.01f}) {
        auto moved = qkv;
        moved[i] += step;
        const double distance = static_cast<double>(moved[i]) - static_cast<double>(qkv[i]);
        slope += (weighted_sum(reference(shape, moved), d_out) - weighted_sum(expected, d_out)) /
                 (2.0 * distance);
      }
      CHECK(dqkv[i] == doctest::Approx(slope).epsilon(1e-3));
    }
  }
}
