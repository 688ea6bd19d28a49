// SPDX-License-Identifier: Apache-2.0
#include "model/gemm.hpp"

#ifdef TRAIN_GPT_ONEDNN

#include <dnnl.hpp>

#include <array>
#include <map>

namespace train_gpt {
namespace {

using dnnl::memory;

memory::desc describe(std::int64_t rows, std::int64_t cols, std::int64_t stride, bool transposed,
                      memory::data_type type) {
  // oneDNN has no transpose flag: a transposed matrix is described by exchanged strides.
  return transposed ? memory::desc({rows, cols}, type, memory::dims{1, stride})
                    : memory::desc({rows, cols}, type, memory::dims{stride, 1});
}

memory::desc describe(const ConstBf16Matrix& m) {
  return describe(m.rows, m.cols, m.stride, m.transposed, memory::data_type::bf16);
}

/// Executes matrix products with oneDNN. Creating a primitive is expensive (oneDNN generates code),
/// so each one is created once per shape and kept. One object per thread, because a primitive's
/// memory handles are set before each execution.
class Multiplier {
 public:
  void run(void* out, const memory::desc& out_desc, const ConstBf16Matrix& a,
           const ConstBf16Matrix& b, float beta, const std::array<std::int64_t, 9>& shape) {
    auto found = products_.find(shape);
    if (found == products_.end()) {
      found = products_.emplace(shape, make(out_desc, a, b, beta)).first;
    }
    Product& product = found->second;
    product.a.set_data_handle(const_cast<Bf16*>(a.data));
    product.b.set_data_handle(const_cast<Bf16*>(b.data));
    product.out.set_data_handle(out);
    product.primitive.execute(
        stream_,
        {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.out}});
    stream_.wait();
  }

 private:
  struct Product {
    dnnl::matmul primitive;
    memory a, b, out;
  };

  Product make(const memory::desc& out, const ConstBf16Matrix& a, const ConstBf16Matrix& b,
               float beta) {
    dnnl::primitive_attr attributes;
    if (beta != 0.0f) {
      dnnl::post_ops sum;
      sum.append_sum(beta);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc chosen(engine_, describe(a), describe(b), out, attributes);
#else
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(describe(a), describe(b), out),
                                              attributes, engine_);
#endif
    const auto argument = [this](const memory::desc& desc) {
      return memory(desc, engine_, DNNL_MEMORY_NONE);
    };
    return {dnnl::matmul(chosen), argument(describe(a)), argument(describe(b)), argument(out)};
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<std::array<std::int64_t, 9>, Product> products_;
};

template <class Result>
void multiply_bf16(const Result& out, const ConstBf16Matrix& a, const ConstBf16Matrix& b,
                   float beta, memory::data_type type) {
  thread_local Multiplier multiplier;
  const std::array<std::int64_t, 9> shape = {a.rows,
                                             a.cols,
                                             b.cols,
                                             a.stride,
                                             b.stride,
                                             out.stride,
                                             (a.transposed ? 2 : 0) + (b.transposed ? 1 : 0),
                                             static_cast<std::int64_t>(type),
                                             beta != 0.0f ? 1 : 0};
  multiplier.run(out.data, describe(out.rows, out.cols, out.stride, false, type), a, b, beta,
                 shape);
}

}  // namespace

bool has_bf16_products() {
#ifdef __x86_64__
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

void multiply(Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta) {
  multiply_bf16(out, a, b, beta, memory::data_type::f32);
}

void multiply(Bf16Matrix out, ConstBf16Matrix a, ConstBf16Matrix b, float beta) {
  multiply_bf16(out, a, b, beta, memory::data_type::bf16);
}

}  // namespace train_gpt

#else

#include <cstdlib>

namespace train_gpt {

bool has_bf16_products() {
  return false;
}

void multiply(Matrix, ConstBf16Matrix, ConstBf16Matrix, float) {
  std::abort();
}

void multiply(Bf16Matrix, ConstBf16Matrix, ConstBf16Matrix, float) {
  std::abort();
}

}  // namespace train_gpt

#endif
