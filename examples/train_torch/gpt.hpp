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
/// The two products of an attention or of an MLP.
struct ProductsImpl : nn::Module {
  ProductsImpl(const char* name, int64_t dim, int64_t outputs, int64_t inputs)
      : in(register_module(name, Product(dim, outputs))),
        out(register_module("c_proj", Product(inputs, dim))) {}
  Product in, out;
};
TORCH_MODULE(Products);

struct BlockImpl : nn::Module {
  BlockImpl(int64_t dim, int64_t in_heads)
      : heads(in_heads),
        ln_1(nn::LayerNormOptions({dim})),
        ln_2(ln_1->options),
        attn(register_module("attn", Products("c_attn", dim, 3 * dim, dim))),
        mlp(register_module("mlp", Products("c_fc", dim, 4 * dim, 4 * dim))) {
    register_module("ln_1", ln_1);
    register_module("ln_2", ln_2);
  }
  Tensor forward(Tensor x) {
    const Tensor qkv = attn->in(ln_1(x)).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4});
    const Tensor y = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true);
    x = x + attn->out(y.transpose(1, 2).flatten(2));
    return x + mlp->out(torch::gelu(mlp->in(ln_2(x)), "tanh"));
  }
  int64_t heads;
  nn::LayerNorm ln_1, ln_2;
  Products attn, mlp;
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
    register_module("transformer", nn::ModuleDict())
        ->update({{"wte", wte.ptr()}, {"wpe", wpe.ptr()}, {"h", h.ptr()}, {"ln_f", ln_f.ptr()}});
    register_module("lm_head", lm_head);
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
