// SPDX-License-Identifier: Apache-2.0
#include "sharding/policy.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

namespace acc::sharding {
namespace {

using settings::MixedPrecision;

/// fp8 applies to matrix products only; all other values have the dtypes of bf16.
DType dtype_of(MixedPrecision precision) {
  switch (precision) {
    case MixedPrecision::fp16: return DType::float16;
    case MixedPrecision::bf16:
    case MixedPrecision::fp8: return DType::bfloat16;
    case MixedPrecision::no: break;
  }
  return DType::float32;
}

bool is_trainable(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

void check(const settings::ShardingSettings& settings, DType load) {
  if (!is_trainable(load)) {
    throw Error(Errc::invalid_argument,
                fmt::format("ModelOptions::dtype must be float32, bfloat16 or float16, got {}",
                            to_string(load)));
  }
  if (settings.reduce_precision == MixedPrecision::fp8) {
    throw Error(Errc::not_supported, "gradients can be reduced in fp32, bf16 or fp16, not in fp8");
  }
}

}  // namespace

PrecisionPolicy make_policy(const settings::ShardingSettings& settings, DType load,
                            settings::Device device) {
  check(settings, load);
  const bool mixed = settings.is_mixed();
  PrecisionPolicy policy;
  policy.loaded = load;
  policy.gathered = mixed ? dtype_of(settings.mixed_precision) : load;
  policy.stored = mixed ? DType::float32 : load;
  policy.rounds_initial = mixed && settings.round_initial_weights;
  // DeepSpeed has no partition of what is not trained, only the 16-bit copy.
  policy.frozen = policy.rounds_initial ? policy.gathered : load;
  // The squares of gradients leave float16's range.
  policy.moments = policy.stored == DType::float16 ? DType::bfloat16 : policy.stored;
  // As in DDP, gradients that are kept whole are reduced in float32 unless the user asks for less.
  policy.reduced_whole =
      settings.reduce_precision ? dtype_of(*settings.reduce_precision) : DType::float32;
  policy.reduced = settings.reduce_precision ? policy.reduced_whole : policy.gathered;
  policy.buffers = policy.gathered;
  // A CPU widens 16-bit weights before use.
  policy.viewed = device == settings::Device::cuda ? policy.gathered : DType::float32;
  policy.stochastic = settings.stochastic_rounding && policy.stored != DType::float32;
  return policy;
}

PrecisionPolicy policy_of(const ParameterDTypes& dtypes, bool trainable) {
  const bool converts = dtypes.stored != dtypes.computed;
  if ((converts || trainable) && !(is_trainable(dtypes.stored) && is_trainable(dtypes.computed) &&
                                   is_trainable(dtypes.reduced))) {
    throw Error(Errc::not_supported,
                fmt::format("a {} parameter in {}, computed in {} and reduced in {}: expected "
                            "float32, bfloat16 or float16",
                            trainable ? "trained" : "frozen", to_string(dtypes.stored),
                            to_string(dtypes.computed), to_string(dtypes.reduced)));
  }
  return {.loaded = dtypes.stored,
          .stored = dtypes.stored,
          .frozen = dtypes.stored,
          .moments = dtypes.stored,
          .gathered = dtypes.computed,
          .viewed = dtypes.computed,
          .reduced = dtypes.reduced,
          .reduced_whole = dtypes.reduced,
          .buffers = dtypes.computed};
}

}  // namespace acc::sharding
