// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts.hpp"

#include <algorithm>
#include <array>

namespace acc::doctor {

const Interface* MachineFacts::main_interface() const noexcept {
  const auto found = std::ranges::find_if(interfaces, [&](const Interface& each) {
    return std::ranges::find(each.addresses, address) != each.addresses.end();
  });
  return found == interfaces.end() ? nullptr : &*found;
}

std::string_view to_string(Reached reached) noexcept {
  constexpr std::array<std::string_view, 6> kNames = {"yes",      "refused", "no_answer",
                                                      "no_route", "silent",  "other"};
  return kNames[static_cast<std::size_t>(reached)];
}

bool PairFacts::reaches(std::string_view address) const noexcept {
  return std::ranges::any_of(attempts, [&](const Attempt& each) {
    return each.address == address && each.reached == Reached::yes;
  });
}

const PairFacts* Examination::pair(int from, int to) const noexcept {
  const auto found = std::ranges::find_if(
      pairs, [&](const PairFacts& each) { return each.from == from && each.to == to; });
  return found == pairs.end() ? nullptr : &*found;
}

std::optional<double> Examination::latency_us(int a, int b) const noexcept {
  std::optional<double> worst;
  for (const PairFacts* each : {pair(a, b), pair(b, a)}) {
    if (each != nullptr && each->latency_us) {
      worst = std::max(worst.value_or(0.0), *each->latency_us);
    }
  }
  return worst;
}

std::optional<double> Examination::bandwidth_gbps(int a, int b) const noexcept {
  std::optional<double> worst;
  for (const PairFacts* each : {pair(a, b), pair(b, a)}) {
    if (each != nullptr && each->bandwidth_gbps) {
      worst = std::min(worst.value_or(*each->bandwidth_gbps), *each->bandwidth_gbps);
    }
  }
  return worst;
}

bool is_loopback(std::string_view address) noexcept {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

}  // namespace acc::doctor
