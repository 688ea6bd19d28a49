// SPDX-License-Identifier: Apache-2.0
#include "model/attention.hpp"

#include "../random_values.hpp"
#include "cuda/kernels.hpp"
#include "device_array.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

using namespace train_gpt;
using namespace train_gpt::cuda;

namespace {

using Numbers = std::vector<double>;

/// Returns one head of one sequence of a (B, T, parts, H, D) array, as rows of D.
struct HeadIndex {
  const AttentionShape& shape;
  std::int64_t sequence;
  std::int64_t head;

  [[nodiscard]] std::size_t at(std::int64_t parts, std::int64_t part, std::int64_t t,
                               std::int64_t d) const {
    const std::int64_t row = (sequence * shape.time + t) * parts + part;
    return static_cast<std::size_t>((row * shape.heads + head) * shape.head_dim + d);
  }
};

struct Reference {
  Numbers out, log_sum, dqkv;
};

/// Computes causal attention and its gradient by their definitions.
void add_head(const HeadIndex& head, const std::vector<float>& qkv, const std::vector<float>& d_out,
              Reference& result) {
  const AttentionShape& s = head.shape;
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  const auto dot = [&](std::int64_t query, std::int64_t key) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < s.head_dim; ++d) {
      sum += static_cast<double>(qkv[head.at(3, 0, query, d)]) * qkv[head.at(3, 1, key, d)];
    }
    return sum * scale;
  };
  for (std::int64_t query = 0; query < s.time; ++query) {
    Numbers p;
    double sum = 0.0;
    for (std::int64_t key = 0; key <= query; ++key) {
      p.push_back(std::exp(dot(query, key)));
      sum += p.back();
    }
    result
        .log_sum[static_cast<std::size_t>((head.sequence * s.heads + head.head) * s.time + query)] =
        std::log(sum);
    Numbers dp;
    double delta = 0.0;
    for (std::int64_t key = 0; key <= query; ++key) {
      double& weight = p[static_cast<std::size_t>(key)];
      weight /= sum;
      double d_weight = 0.0;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        const double v = qkv[head.at(3, 2, key, d)];
        const double gradient = d_out[head.at(1, 0, query, d)];
        result.out[head.at(1, 0, query, d)] += weight * v;
        result.dqkv[head.at(3, 2, key, d)] += weight * gradient;
        d_weight += gradient * v;
      }
      dp.push_back(d_weight);
      delta += weight * d_weight;
    }
    for (std::int64_t key = 0; key <= query; ++key) {
      const auto k = static_cast<std::size_t>(key);
      const double d_score = p[k] * (dp[k] - delta) * scale;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        result.dqkv[head.at(3, 0, query, d)] += d_score * qkv[head.at(3, 1, key, d)];
        result.dqkv[head.at(3, 1, key, d)] += d_score * qkv[head.at(3, 0, query, d)];
      }
    }
  }
}

/// The reference of one head on its own.
Reference reference(const AttentionShape& s, const std::vector<float>& qkv,
                    const std::vector<float>& d_out) {
  Reference result{Numbers(d_out.size()), Numbers(static_cast<std::size_t>(s.time)),
                   Numbers(qkv.size())};
  add_head({s, 0, 0}, qkv, d_out, result);
  return result;
}

/// One head's part of a (B, T, parts, H, D) array, as (T, parts, D).
std::vector<float> part_of(const HeadIndex& head, std::int64_t parts,
                           const std::vector<float>& values) {
  std::vector<float> part;
  for (std::int64_t t = 0; t < head.shape.time; ++t) {
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(head.at(parts, p, t, 0));
      part.insert(part.end(), first, first + head.shape.head_dim);
    }
  }
  return part;
}

/// Runs attention over the whole shape, and compares at most `heads` heads, among them the first
/// and the last one, with their definition.
template <class T>
void check_attention(const AttentionShape& shape, double tolerance, std::int64_t heads = 4) {
  CAPTURE(shape.time);
  CAPTURE(shape.head_dim);
  const TestStream stream;
  const std::int64_t rows = shape.batch * shape.time;
  const auto qkv = rounded<T>(random_values(rows * 3 * shape.channels(), 11, 1.5));
  const auto d_out = rounded<T>(random_values(rows * shape.channels(), 12));
  const DeviceArray<T> device_qkv(qkv), device_d_out(d_out), out(d_out.size()), dqkv(qkv.size());
  const auto statistics = static_cast<std::size_t>(rows * shape.heads);
  const DeviceArray<float> log_sum(statistics), delta(statistics);
  cuda::attention_forward(stream, shape, device_qkv.data(), out.data(), log_sum.data());
  cuda::attention_backward(stream, shape, device_qkv.data(), out.data(), log_sum.data(),
                           device_d_out.data(), delta.data(), dqkv.data());
  const auto seen_out = out.read();
  const auto seen_dqkv = dqkv.read();
  const auto seen_log_sum = log_sum.read();
  const std::int64_t all = shape.batch * shape.heads;
  const std::int64_t compared = std::min(all, heads);
  for (std::int64_t i = 0; i < compared; ++i) {
    const std::int64_t at = compared == 1 ? 0 : i * (all - 1) / (compared - 1);
    CAPTURE(at);
    const HeadIndex head{shape, at / shape.heads, at % shape.heads};
    const AttentionShape alone{
        .batch = 1, .time = shape.time, .heads = 1, .head_dim = shape.head_dim};
    const Reference expected = reference(alone, part_of(head, 3, qkv), part_of(head, 1, d_out));
    const auto first = seen_log_sum.begin() + at * shape.time;
    CHECK(worst_error<T>({first, first + shape.time}, expected.log_sum) < 1e-5);
    CHECK(worst_error<T>(part_of(head, 1, seen_out), expected.out) < tolerance);
    CHECK(worst_error<T>(part_of(head, 3, seen_dqkv), expected.dqkv) < tolerance);
  }
}

}  // namespace

TEST_CASE("attention on tensor cores, at lengths below, equal to and above its blocks") {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t time : {1, 17, 64, 100, 128, 200, 257}) {
      check_attention<__nv_bfloat16>(
          {.batch = time < 50 ? 2 : 1, .time = time, .heads = 2, .head_dim = head_dim}, 0.01);
    }
  }
}

// The emulator of the stand-in is too slow for whole batches, so it runs one head.
TEST_CASE("attention on tensor cores at the lengths and batch sizes of real models") {
  const bool emulated = std::getenv("ACC_CUDA_BACKEND") != nullptr;
  for (const AttentionShape& shape :
       {AttentionShape{.batch = 8, .time = 1024, .heads = 12, .head_dim = 64},
        AttentionShape{.batch = 4, .time = 2048, .heads = 16, .head_dim = 128}}) {
    const AttentionShape one_head{
        .batch = 1, .time = shape.time, .heads = 1, .head_dim = shape.head_dim};
    check_attention<__nv_bfloat16>(emulated ? one_head : shape, 0.01, 2);
  }
}

TEST_CASE("attention with other dtypes and head sizes") {
  for (const std::int64_t head_dim : {1, 16, 64, 80, 256}) {
    check_attention<float>({.batch = 2, .time = 19, .heads = 2, .head_dim = head_dim}, 1e-5);
    if (head_dim != 64) {
      check_attention<__nv_bfloat16>({.batch = 1, .time = 19, .heads = 2, .head_dim = head_dim},
                                     0.01);
    }
  }
}
