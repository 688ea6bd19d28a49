// SPDX-License-Identifier: Apache-2.0
#include "acc/plugins/sharding_settings.hpp"

#include "acc/plugins/words.hpp"

namespace acc::plugins {

std::string_view to_string(Strategy value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(MixedPrecision value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(ReduceDtype value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(StateDictType value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(NanPolicy value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(BackwardPrefetch value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(WrapPolicy value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(OffloadDevice value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(Device value) noexcept {
  return word_of(value).name;
}
std::string_view to_string(DeviceCollectives value) noexcept {
  return word_of(value).name;
}

}  // namespace acc::plugins
