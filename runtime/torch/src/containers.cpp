// SPDX-License-Identifier: Apache-2.0
// The forwards of LibTorch's modules that call other modules, whose children may be units here.
#include "acc/torch.hpp"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/transformerlayer.h>

namespace acc::torch::detail {

namespace nn = ::torch::nn;
using at::Tensor;

namespace {

/// Calls `forward(arguments…)`, in a scope if the module is a unit.
template <typename Function, typename... Arguments>
Tensor in_scope(const nn::Module& module, const Function& forward, const Arguments&... arguments) {
  Unit* const unit = unit_of(module);
  if (unit == nullptr) {
    return forward(arguments...);
  }
  const auto bound = bind(forward, arguments...);
  run(*unit, bound);
  return bound->take();
}

/// Calls a module whose class is known only at run time.
template <typename Container = nn::SequentialImpl, typename... Arguments>
Tensor call_any(nn::AnyModule& any, const Arguments&... arguments) {
  const std::shared_ptr<nn::Module> module = any.ptr();
  const auto forward = [&any, module](const auto&... each) -> Tensor {
    auto* const container = module->as<Container>();
    return container != nullptr ? forward_of(*container, each...) : any.forward<Tensor>(each...);
  };
  return in_scope(*module, forward, arguments...);
}

Tensor call_child(nn::AnyModule& any, const Tensor& x) {
  return any.ptr()->as<nn::TransformerEncoderImpl>() != nullptr
             ? call_any<nn::TransformerEncoderImpl>(any, x, Tensor(), Tensor())
             : call_any(any, x);
}

/// Calls the layers of an encoder or decoder one after the other, and the norm behind them.
template <typename Layer, typename Coder, typename... Arguments>
Tensor call_layers(Coder& coder, Tensor x, const Arguments&... arguments) {
  for (const std::shared_ptr<nn::Module>& each : *coder.layers) {
    auto& layer = *each->template as<Layer>();
    const auto forward = [&layer](const Tensor& input, const auto&... rest) {
      return layer.forward(input, rest...);
    };
    x = in_scope(layer, forward, x, arguments...);
  }
  return coder.norm.is_empty() ? x : call_child(coder.norm, x);
}

}  // namespace

Tensor forward_of(nn::SequentialImpl& sequential, Tensor x) {
  for (nn::AnyModule& each : sequential) {
    x = call_child(each, x);
  }
  return x;
}

Tensor forward_of(nn::TransformerEncoderImpl& encoder, const Tensor& src, const Tensor& src_mask,
                  const Tensor& src_key_padding_mask) {
  return call_layers<nn::TransformerEncoderLayerImpl>(encoder, src, src_mask, src_key_padding_mask);
}

Tensor forward_of(nn::TransformerDecoderImpl& decoder, const Tensor& tgt, const Tensor& memory,
                  const Tensor& tgt_mask, const Tensor& memory_mask,
                  const Tensor& tgt_key_padding_mask, const Tensor& memory_key_padding_mask) {
  return call_layers<nn::TransformerDecoderLayerImpl>(
      decoder, tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask);
}

Tensor forward_of(nn::TransformerImpl& transformer, const Tensor& src, const Tensor& tgt,
                  const Tensor& src_mask, const Tensor& tgt_mask, const Tensor& memory_mask,
                  const Tensor& src_key_padding_mask, const Tensor& tgt_key_padding_mask,
                  const Tensor& memory_key_padding_mask) {
  const Tensor memory = call_any<nn::TransformerEncoderImpl>(transformer.encoder, src, src_mask,
                                                             src_key_padding_mask);
  return call_any<nn::TransformerDecoderImpl>(transformer.decoder, tgt, memory, tgt_mask,
                                              memory_mask, tgt_key_padding_mask,
                                              memory_key_padding_mask);
}

}  // namespace acc::torch::detail
