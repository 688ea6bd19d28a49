// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime.hpp"

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <vector>

TEST_CASE("a saved activation is restored even if its source was overwritten") {
  for (const bool offload : {false, true}) {
    CAPTURE(offload);
    acc::settings::RuntimeSettings settings;
    settings.sharding.activation_checkpointing = true;
    settings.sharding.activation_checkpointing_offload = offload;
    auto runtime = acc::Runtime::from_settings(settings);
    CHECK(runtime.activation_checkpointing());
    std::vector<acc::SavedActivation> kept;
    std::array<float, 100> values{};
    for (int each = 0; each < 4; ++each) {
      std::iota(values.begin(), values.end(), static_cast<float>(1000 * each));
      kept.push_back(runtime.keep(values.data(), sizeof values));
    }
    for (int each = 3; each >= 0; --each) {
      acc::SavedActivation last = std::move(kept.back());
      kept.pop_back();
      last.prefetch();
      const auto* found = static_cast<const float*>(last.restore());
      CHECK(found[0] == static_cast<float>(1000 * each));
      CHECK(found[99] == static_cast<float>(1000 * each + 99));
      CHECK(last.restore() == found);
    }
  }
}

TEST_CASE("an empty saved activation cannot be restored") {
  auto runtime = acc::Runtime::from_settings({});
  CHECK_FALSE(runtime.activation_checkpointing());
  CHECK_THROWS_AS((void)acc::SavedActivation().restore(), acc::Error);
  CHECK_THROWS_AS((void)runtime.keep(nullptr, 4), acc::Error);
  const float value = 1.0F;
  CHECK_THROWS_AS((void)runtime.keep(&value, 0), acc::Error);
}
