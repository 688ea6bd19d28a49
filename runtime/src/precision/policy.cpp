#include "precision/policy.hpp"

namespace acc::precision {
namespace {

DType dtype_of(plugins::MixedPrecision precision) {
  return precision == plugins::MixedPrecision::bf16 ? DType::bfloat16 : DType::float32;
}

}  // namespace

PrecisionPolicy make_policy(const plugins::ShardingSettings& settings, DType load,
                            plugins::Device device) {
  static_cast<void>(load);
  PrecisionPolicy policy;
  policy.gathered = dtype_of(settings.mixed_precision);
  policy.reduced = policy.gathered;
  policy.buffers = policy.gathered;
  // A CPU widens 16-bit weights before use.
  policy.viewed = device == plugins::Device::cuda ? policy.gathered : DType::float32;
  return policy;
}

}  // namespace acc::precision
