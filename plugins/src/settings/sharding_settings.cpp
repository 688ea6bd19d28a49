// SPDX-License-Identifier: Apache-2.0
#include "acc/plugins/sharding_settings.hpp"

namespace acc::plugins {

std::string_view to_string(Strategy value) noexcept {
  switch (value) {
    case Strategy::no_shard: return "no_shard";
    case Strategy::shard_optimizer: return "shard_optimizer";
    case Strategy::shard_grad_op: return "shard_grad_op";
    case Strategy::full_shard: return "full_shard";
    case Strategy::hybrid_shard: return "hybrid_shard";
    case Strategy::hybrid_shard_zero2: return "hybrid_shard_zero2";
  }
  return "unknown";
}

std::string_view to_string(MixedPrecision value) noexcept {
  switch (value) {
    case MixedPrecision::no: return "no";
    case MixedPrecision::fp16: return "fp16";
    case MixedPrecision::bf16: return "bf16";
    case MixedPrecision::fp8: return "fp8";
  }
  return "unknown";
}

std::string_view to_string(StateDictType value) noexcept {
  switch (value) {
    case StateDictType::full: return "full";
    case StateDictType::local: return "local";
    case StateDictType::sharded: return "sharded";
  }
  return "unknown";
}

std::string_view to_string(NanPolicy value) noexcept {
  switch (value) {
    case NanPolicy::ignore: return "ignore";
    case NanPolicy::skip: return "skip";
    case NanPolicy::raise: return "raise";
  }
  return "unknown";
}

std::string_view to_string(BackwardPrefetch value) noexcept {
  switch (value) {
    case BackwardPrefetch::none: return "none";
    case BackwardPrefetch::backward_pre: return "backward_pre";
    case BackwardPrefetch::backward_post: return "backward_post";
  }
  return "unknown";
}

std::string_view to_string(WrapPolicy value) noexcept {
  switch (value) {
    case WrapPolicy::unset: return "unset";
    case WrapPolicy::transformer_based: return "transformer_based";
    case WrapPolicy::size_based: return "size_based";
    case WrapPolicy::no_wrap: return "no_wrap";
  }
  return "unknown";
}

std::string_view to_string(OffloadDevice value) noexcept {
  switch (value) {
    case OffloadDevice::none: return "none";
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
  }
  return "unknown";
}

std::string_view to_string(Device value) noexcept {
  switch (value) {
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
  }
  return "unknown";
}

std::string_view to_string(DeviceCollectives value) noexcept {
  switch (value) {
    case DeviceCollectives::automatic: return "auto";
    case DeviceCollectives::nccl: return "nccl";
    case DeviceCollectives::staged: return "staged";
  }
  return "unknown";
}

}  // namespace acc::plugins
