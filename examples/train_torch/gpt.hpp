// SPDX-License-Identifier: Apache-2.0
// The GPT-2 of examples/train_gpt with LibTorch's modules. Only the call of the blocks is about
// sharding.
#pragma once

#include <acc/torch.hpp>
#include <torch/torch.h>

using torch::Tensor;
namespace nn = torch::nn;

/// y = x W + b with W of [in, out], the layout of GPT-2's files.
struct ProductImpl : nn::Module {
  ProductImpl(int64_t inputs, int64_t outputs)
      : weight(register_parameter("weight", 0.02 * torch::randn({inputs, outputs}))),
        bias(register_parameter("bias", torch::zeros(outputs))) {}
  Tensor forward(const Tensor& x) { return torch::matmul(x, weight) + bias; }
  Tensor weight, bias;
};
TORCH_MODULE(Product);

struct AttentionImpl : nn::Module {
  AttentionImpl(int64_t dim, int64_t in_heads)
      : heads(in_heads), c_attn(dim, 3 * dim), c_proj(dim, dim) {
    register_module("c_attn", c_attn);
    register_module("c_proj", c_proj);
  }
  Tensor forward(const Tensor& x) {
    const Tensor parts = c_attn(x).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4});
    const Tensor y = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    return c_proj(y.transpose(1, 2).flatten(2));
  }
  int64_t heads;
  Product c_attn, c_proj;
};
TORCH_MODULE(Attention);

struct MlpImpl : nn::Module {
  explicit MlpImpl(int64_t dim) : c_fc(dim, 4 * dim), c_proj(4 * dim, dim) {
    register_module("c_fc", c_fc);
    register_module("c_proj", c_proj);
  }
  Tensor forward(const Tensor& x) { return c_proj(torch::gelu(c_fc(x), "tanh")); }
  Product c_fc, c_proj;
};
TORCH_MODULE(Mlp);

struct BlockImpl : nn::Module {
  BlockImpl(int64_t dim, int64_t heads)
      : ln_1(nn::LayerNormOptions({dim})), attn(dim, heads), ln_2(ln_1->options), mlp(dim) {
    register_module("ln_1", ln_1);
    register_module("attn", attn);
    register_module("ln_2", ln_2);
    register_module("mlp", mlp);
  }
  Tensor forward(Tensor x) {
    x = x + attn(ln_1(x));
    return x + mlp(ln_2(x));
  }
  nn::LayerNorm ln_1;
  Attention attn;
  nn::LayerNorm ln_2;
  Mlp mlp;
};
TORCH_MODULE(Block);

/// Returns the loss of the next token. tokens: [rows, length + 1].
struct GptImpl : nn::Module {
  GptImpl(int64_t vocab, int64_t positions, int64_t dim, int64_t layers, int64_t heads)
      : wte(vocab, dim),
        wpe(positions, dim),
        ln_f(nn::LayerNormOptions({dim})),
        lm_head(nn::LinearOptions(dim, vocab).bias(false)) {
    for (int64_t i = 0; i < layers; ++i) {
      h->push_back(Block(dim, heads));
    }
    register_module("lm_head", lm_head);
    register_module("transformer", nn::ModuleDict())
        ->update({{"wte", wte.ptr()}, {"wpe", wpe.ptr()}, {"h", h.ptr()}, {"ln_f", ln_f.ptr()}});
    nn::init::normal_(wte->weight, 0.0, 0.02);
    nn::init::normal_(wpe->weight, 0.0, 0.02);
    lm_head->weight = wte->weight;  // tied
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor inputs = tokens.slice(1, 0, -1), targets = tokens.slice(1, 1);
    Tensor x = wte(inputs) + wpe(torch::arange(inputs.size(1)));
    for (const auto& block : *h) {
      x = acc::torch::call(block->as<Block>(), x);
    }
    const Tensor logits = lm_head(ln_f(x)).to(torch::kFloat);
    return nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
  }
  nn::Embedding wte, wpe;
  nn::ModuleList h;
  nn::LayerNorm ln_f;
  nn::Linear lm_head;
};
TORCH_MODULE(Gpt);
