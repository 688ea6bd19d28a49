// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/sharding_settings.hpp"

#include "acc/settings/words.hpp"

namespace acc::settings {

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

}  // namespace acc::settings
