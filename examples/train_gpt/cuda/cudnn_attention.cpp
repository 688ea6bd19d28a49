// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn_attention.hpp"

#include <acc/base/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt::cuda::cudnn {
namespace {

/// Ids of the tensors and numbers whose memory a plan is given.
enum Id : std::int64_t {
  q = 1,
  k,
  v,
  out,
  stats,
  d_out,
  dq,
  dk,
  dv,
  delta,
  dq_sums,
  scale,
  masked,
  one
};

constexpr float kOne = 1.0f;

float scale_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

/// Value of masked scores. Versions before 9.10 need a finite one.
float masked_score(const Library& api) {
  return api.GetVersion() < 91000 ? std::numeric_limits<float>::lowest()
                                  : -std::numeric_limits<float>::infinity();
}

/// Layouts of attention's tensors as (B, H, T, D).
struct Layouts {
  explicit Layouts(const AttentionShape& s)
      : in_qkv{{s.batch, s.heads, s.time, s.head_dim},
               {3 * s.time * s.channels(), s.head_dim, 3 * s.channels(), 1}},
        plain{{s.batch, s.heads, s.time, s.head_dim},
              {s.time * s.channels(), s.head_dim, s.channels(), 1}},
        packed(Layout::packed({s.batch, s.heads, s.time, s.head_dim})),
        row(Layout::packed({s.batch, s.heads, s.time, 1})),
        scores(Layout::packed({s.batch, s.heads, s.time, s.time})) {}

  Layout in_qkv;  ///< one of q, k, v in qkv (B, T, 3, H, D)
  Layout plain;   ///< out (B, T, H, D)
  Layout packed;  ///< (B, H, T, D)
  Layout row;     ///< (B, H, T, 1)
  Layout scores;  ///< (B, H, T, T)
};

/// Graph of attention, with the parts that forward and backward share. cuDNN recognises attention
/// by the operations and their order, which are those of the composite nodes of cudnn-frontend
/// (node/scaled_dot_product_flash_attention.h of version 1.32).
struct Builder {
  Builder(const Library& api, const AttentionGraph& attention)
      : graph(api),
        type(attention.type),
        layouts(attention.shape),
        scaling(graph.scalar(Id::scale)),
        q(graph.memory(Id::q, layouts.in_qkv, type)),
        k_transposed(graph.memory(Id::k, layouts.in_qkv.transposed(), type)) {}

  Graph graph;
  DataType type;
  Layouts layouts;
  Tensor scaling;
  Tensor q;
  Tensor k_transposed;

  Tensor apply(PointwiseMode mode, Tensor x, const Layout& layout) {
    const Tensor y = graph.temporary(layout);
    graph.pointwise(mode, x, y);
    return y;
  }
  Tensor apply(PointwiseMode mode, Tensor x, Tensor b, const Layout& layout) {
    const Tensor y = graph.temporary(layout);
    graph.pointwise(mode, x, b, y);
    return y;
  }
  Tensor product(Tensor a, Tensor b) {
    const Tensor c = graph.temporary(layouts.scores);
    graph.matmul(a, b, c);
    return c;
  }
  /// q k^T * scale
  Tensor scaled_scores() {
    return apply(PointwiseMode::mul, product(q, k_transposed), scaling, layouts.scores);
  }
  /// x where the key is not after the query, the masked value elsewhere
  Tensor causal(Tensor x) {
    const Tensor value = graph.scalar(Id::masked);
    const Tensor query = graph.temporary(layouts.scores, DataType::int32);
    const Tensor key = graph.temporary(layouts.scores, DataType::int32);
    const Tensor visible = graph.temporary(layouts.scores, DataType::boolean);
    const Tensor y = graph.temporary(layouts.scores);
    graph.index(x, 2, query);
    graph.index(x, 3, key);
    graph.greater_equal(query, key, visible);
    graph.select(x, value, visible, y);
    return y;
  }
  /// x^T in the inputs' type
  Tensor transposed(Tensor x) {
    const Tensor y = graph.temporary(layouts.scores.transposed(), type);
    graph.reshape(x, y);
    return y;
  }
};

/// Returns where q, k and v of the first token begin in qkv.
const void* part(const void* qkv, std::int64_t which, const AttentionShape& shape) {
  constexpr std::int64_t kElement = 2;  // bytes of bfloat16 and float16
  return static_cast<const char*>(qkv) + which * shape.channels() * kElement;
}

}  // namespace

Plan forward_plan(const Library& api, const AttentionGraph& graph, const Target& target) {
  Builder b(api, graph);
  const Tensor v = b.graph.memory(Id::v, b.layouts.in_qkv, b.type);
  const Tensor out = b.graph.memory(Id::out, b.layouts.plain, b.type);
  const Tensor stats = b.graph.memory(Id::stats, b.layouts.row, DataType::float32);

  const Tensor scores = b.causal(b.scaled_scores());
  const Tensor maximum = b.graph.temporary(b.layouts.row);
  b.graph.reduce(ReductionOperator::max, scores, maximum);
  const Tensor shifted = b.apply(PointwiseMode::sub, scores, maximum, b.layouts.scores);
  const Tensor weights = b.apply(PointwiseMode::exp, shifted, b.layouts.scores);
  const Tensor sum = b.graph.temporary(b.layouts.row);
  b.graph.reduce(ReductionOperator::add, weights, sum);
  b.graph.pointwise(PointwiseMode::add, maximum, b.apply(PointwiseMode::log, sum, b.layouts.row),
                    stats);
  const Tensor p = b.graph.temporary(b.layouts.scores, b.type);
  b.graph.pointwise(PointwiseMode::div, weights, sum, p);
  b.graph.matmul(p, v, out);
  return std::move(b.graph).plan(target);
}

Plan backward_plan(const Library& api, const AttentionGraph& graph, const Target& target) {
  Builder b(api, graph);
  const Tensor v_transposed = b.graph.memory(Id::v, b.layouts.in_qkv.transposed(), b.type);
  const Tensor out = b.graph.memory(Id::out, b.layouts.plain, b.type);
  const Tensor stats = b.graph.memory(Id::stats, b.layouts.row, DataType::float32);
  const Tensor d_out = b.graph.memory(Id::d_out, b.layouts.plain, b.type);
  const Tensor dq = b.graph.memory(Id::dq, b.layouts.in_qkv, b.type);
  const Tensor dk = b.graph.memory(Id::dk, b.layouts.in_qkv, b.type);
  const Tensor dv = b.graph.memory(Id::dv, b.layouts.in_qkv, b.type);
  const Tensor delta = b.graph.memory(Id::delta, b.layouts.row, DataType::float32);

  // delta = sum(d_out * out)
  const Tensor products = b.apply(PointwiseMode::mul, d_out, out, b.layouts.packed);
  const Tensor sums = b.graph.temporary(b.layouts.row);
  b.graph.reduce(ReductionOperator::add, products, sums);
  b.graph.pointwise(PointwiseMode::mul, sums, b.graph.scalar(Id::one), delta);

  // dv = p^T d_out
  const Tensor shifted = b.apply(PointwiseMode::sub, b.scaled_scores(), stats, b.layouts.scores);
  const Tensor p = b.apply(PointwiseMode::exp, b.causal(shifted), b.layouts.scores);
  b.graph.matmul(b.transposed(p), d_out, dv);

  // ds = (d_out v^T - delta) * p * scale
  const Tensor dp = b.product(d_out, v_transposed);
  const Tensor centred = b.apply(PointwiseMode::sub, dp, delta, b.layouts.scores);
  const Tensor weighted = b.apply(PointwiseMode::mul, centred, p, b.layouts.scores);
  const Tensor ds = b.apply(PointwiseMode::mul, weighted, b.scaling, b.layouts.scores);
  b.graph.matmul(b.transposed(ds), b.q, dk);

  // dq = ds k. Stored sums in fp32 let many blocks add to them at the same time, in any order.
  const Tensor k = b.graph.temporary(b.layouts.in_qkv, b.type);
  b.graph.reshape(b.k_transposed, k);
  if (graph.deterministic) {
    b.graph.matmul(ds, k, dq);
  } else {
    const Tensor dq_sums = b.graph.memory(Id::dq_sums, b.layouts.packed, DataType::float32);
    b.graph.matmul(ds, k, dq_sums);
    b.graph.pointwise(PointwiseMode::identity, dq_sums, dq);
  }
  return std::move(b.graph).plan(target);
}

Attention::Attention(cudaStream_t stream, const AttentionGraph& largest) : largest_(largest) {
  api_.check(api_.Create(&handle_), "its start");
  try {
    api_.check(api_.SetStream(handle_, stream), "setting the stream");
    workspace_nbytes_ = workspace_of(plans_of(largest.shape));
    workspace_ = {static_cast<std::size_t>(workspace_nbytes_), "attention's workspace"};
    if (!largest.deterministic) {
      dq_sums_ = {largest.shape.batch * largest.shape.time * largest.shape.channels(),
                  "attention's backward"};
    }
  } catch (...) {
    plans_.clear();
    api_.Destroy(handle_);
    throw;
  }
}

Attention::~Attention() {
  plans_.clear();
  api_.Destroy(handle_);
}

std::int64_t Attention::workspace_of(const Plans& plans) {
  return std::max({std::int64_t{1}, plans.forward.workspace_nbytes,
                   plans.backward.workspace_nbytes});  // some plans need none
}

bool Attention::supports(const AttentionShape& shape) const {
  return shape.batch <= largest_.shape.batch && shape.time == largest_.shape.time &&
         shape.heads == largest_.shape.heads && shape.head_dim == largest_.shape.head_dim;
}

const Attention::Plans& Attention::plans_of(const AttentionShape& shape) {
  const auto found = plans_.find(shape.batch);
  if (found != plans_.end()) {
    return found->second;
  }
  const AttentionGraph graph{shape, largest_.type, largest_.deterministic};
  const Target target{.handle = handle_};
  Plans plans{forward_plan(api_, graph, target), backward_plan(api_, graph, target)};
  const std::int64_t nbytes = workspace_of(plans);
  if (!plans_.empty() && nbytes > workspace_nbytes_) {
    throw acc::Error(acc::Errc::device, "cuDNN needs a workspace of " + std::to_string(nbytes) +
                                            " bytes for a batch of " + std::to_string(shape.batch) +
                                            ", but only " + std::to_string(workspace_nbytes_) +
                                            " for the largest");
  }
  return plans_.emplace(shape.batch, std::move(plans)).first->second;
}

void Attention::forward(const AttentionShape& shape, const void* qkv, void* out, float* log_sum) {
  const float scale = scale_of(shape);
  const float masked = masked_score(api_);
  const std::array<Binding, 7> bindings = {{{Id::q, part(qkv, 0, shape)},
                                            {Id::k, part(qkv, 1, shape)},
                                            {Id::v, part(qkv, 2, shape)},
                                            {Id::out, out},
                                            {Id::stats, log_sum},
                                            {Id::scale, &scale},
                                            {Id::masked, &masked}}};
  execute(api_, handle_, plans_of(shape).forward, bindings, workspace_.data());
}

void Attention::backward(const AttentionShape& shape, const void* qkv, const void* out,
                         const float* log_sum, const void* d_out, float* delta, void* dqkv) {
  const float scale = scale_of(shape);
  const float masked = masked_score(api_);
  std::vector<Binding> bindings = {{Id::q, part(qkv, 0, shape)},
                                   {Id::k, part(qkv, 1, shape)},
                                   {Id::v, part(qkv, 2, shape)},
                                   {Id::out, out},
                                   {Id::stats, log_sum},
                                   {Id::d_out, d_out},
                                   {Id::dq, part(dqkv, 0, shape)},
                                   {Id::dk, part(dqkv, 1, shape)},
                                   {Id::dv, part(dqkv, 2, shape)},
                                   {Id::delta, delta},
                                   {Id::scale, &scale},
                                   {Id::masked, &masked},
                                   {Id::one, &kOne}};
  if (!largest_.deterministic) {
    bindings.push_back({Id::dq_sums, dq_sums_.data()});
  }
  execute(api_, handle_, plans_of(shape).backward, bindings, workspace_.data());
}

}  // namespace train_gpt::cuda::cudnn
