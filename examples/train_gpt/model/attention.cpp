// SPDX-License-Identifier: Apache-2.0
#include "model/attention.hpp"

#include "model/gemm.hpp"
#include "model/kernels.hpp"

#include <algorithm>
#include <cmath>

namespace train_gpt {
namespace {

// Attention is computed head by head in blocks of queries. A block needs only the keys up to its
// last query, so almost half of the products are skipped, and the weights of one block fit in a
// cache. The forward saves log(sum(exp(scores))) per query, from which the backward recomputes the
// weights.

/// Number of queries per block: small enough to skip most of the masked products, large enough for
/// an efficient GEMM.
constexpr std::int64_t kQueryBlock = 64;

float score_scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

/// Queries [first, first + count), which attend to the keys [0, keys).
struct QueryBlock {
  std::int64_t first;
  std::int64_t count;
  std::int64_t keys;

  QueryBlock(std::int64_t first_query, std::int64_t time)
      : first(first_query), count(std::min(kQueryBlock, time - first_query)), keys(first + count) {}
};

/// Views of one head of one sequence inside the tensor of all heads.
template <class MatrixType, class Pointer>
struct HeadView {
  MatrixType q, k, v;  // (T, D)

  HeadView(const AttentionShape& s, Pointer qkv, std::int64_t b, std::int64_t h)
      : q(part(s, qkv, b, h, 0)), k(part(s, qkv, b, h, 1)), v(part(s, qkv, b, h, 2)) {}

  static MatrixType part(const AttentionShape& s, Pointer qkv, std::int64_t b, std::int64_t h,
                         std::int64_t which) {
    const std::int64_t stride = 3 * s.channels();
    return {qkv + b * s.time * stride + which * s.channels() + h * s.head_dim, s.time, s.head_dim,
            stride};
  }
};
using Head = HeadView<ConstMatrix, const float*>;
using HeadGradient = HeadView<Matrix, float*>;

template <class MatrixType, class Pointer>
MatrixType head_of_output(const AttentionShape& s, Pointer out, std::int64_t b, std::int64_t h) {
  return {out + b * s.time * s.channels() + h * s.head_dim, s.time, s.head_dim, s.channels()};
}

template <class MatrixType>
MatrixType rows_of(const MatrixType& m, std::int64_t first, std::int64_t count) {
  return {m.data + first * m.stride, count, m.cols, m.stride};
}

void forward_head(const AttentionShape& s, const Head& head, const Matrix& out, float* log_sum,
                  AttentionScratch& scratch) {
  for (std::int64_t first = 0; first < s.time; first += kQueryBlock) {
    const QueryBlock block(first, s.time);
    const Matrix weights(scratch.weights.data(), block.count, block.keys);
    const Matrix out_rows = rows_of(out, block.first, block.count);

    multiply(weights, rows_of(head.q, block.first, block.count),
             rows_of(head.k, 0, block.keys).t());
    causal_exponentials(weights.data, score_scale(s), block.first, scratch.row.data(),
                        log_sum + block.first, block.count, block.keys);
    multiply(out_rows, {weights.data, block.count, block.keys}, rows_of(head.v, 0, block.keys));
    // Dividing by the sum of weights here instead of in the weights takes D instead of `keys`
    // multiplications per query.
    for (std::int64_t i = 0; i < block.count; ++i) {
      scale(out_rows.data + i * out_rows.stride, scratch.row.data()[i], s.head_dim);
    }
  }
}

void backward_block(const AttentionShape& s, const QueryBlock& block, const Head& head,
                    const ConstMatrix& out, const ConstMatrix& d_out, const float* log_sum,
                    const HeadGradient& gradient, AttentionScratch& scratch) {
  const Matrix weights(scratch.weights.data(), block.count, block.keys);
  const Matrix d_scores(scratch.d_scores.data(), block.count, block.keys);
  const ConstMatrix p(weights.data, block.count, block.keys);
  const ConstMatrix ds(d_scores.data, block.count, block.keys);
  const ConstMatrix q = rows_of(head.q, block.first, block.count);
  const ConstMatrix k = rows_of(head.k, 0, block.keys);
  const ConstMatrix v = rows_of(head.v, 0, block.keys);
  const ConstMatrix d_out_rows = rows_of(d_out, block.first, block.count);

  // delta = sum of p * dp per row, which equals out . d_out (FlashAttention-2, arXiv 2307.08691).
  float* delta = scratch.row.data();
  for (std::int64_t i = 0; i < block.count; ++i) {
    delta[i] = dot(out.data + (block.first + i) * out.stride, d_out_rows.data + i * d_out.stride,
                   s.head_dim);
  }
  multiply(weights, q, k.t());
  multiply(d_scores, d_out_rows, v.t());
  causal_softmax_backward(weights.data, d_scores.data, log_sum + block.first, delta, score_scale(s),
                          block.first, block.count, block.keys);

  // Blocks are processed from the last to the first. The last one attends to all keys and
  // overwrites their gradients; the others add to them.
  const float beta = block.keys == s.time ? 0.0f : 1.0f;
  multiply(rows_of(gradient.q, block.first, block.count), ds, k);
  multiply(rows_of(gradient.k, 0, block.keys), ds.t(), q, beta);
  multiply(rows_of(gradient.v, 0, block.keys), p.t(), d_out_rows, beta);
}

}  // namespace

AttentionScratch::AttentionScratch(std::int64_t time)
    : weights(kQueryBlock * time), d_scores(kQueryBlock * time), row(kQueryBlock) {}

void attention_forward(const AttentionShape& shape, const float* qkv, float* out, float* log_sum,
                       AttentionScratch& scratch) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      forward_head(shape, Head(shape, qkv, b, h), head_of_output<Matrix>(shape, out, b, h),
                   log_sum + (b * shape.heads + h) * shape.time, scratch);
    }
  }
}

void attention_backward(const AttentionShape& shape, const float* qkv, const float* out,
                        const float* log_sum, const float* d_out, float* dqkv,
                        AttentionScratch& scratch) {
  const std::int64_t last_block = (shape.time - 1) / kQueryBlock * kQueryBlock;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::int64_t first = last_block; first >= 0; first -= kQueryBlock) {
        backward_block(shape, QueryBlock(first, shape.time), Head(shape, qkv, b, h),
                       head_of_output<ConstMatrix>(shape, out, b, h),
                       head_of_output<ConstMatrix>(shape, d_out, b, h),
                       log_sum + (b * shape.heads + h) * shape.time,
                       HeadGradient(shape, dqkv, b, h), scratch);
      }
    }
  }
}

}  // namespace train_gpt
