// SPDX-License-Identifier: Apache-2.0
#include "api/epoch_store.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::detail {

EpochStore::EpochStore(std::function<void()> check, std::uint32_t epoch,
                       std::shared_ptr<rendezvous::Store> store)
    : PrefixStore(fmt::format("epoch{}", epoch), std::move(store)), check_(std::move(check)) {}

void EpochStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  constexpr Milliseconds kSlice{100};
  const auto begin = Clock::now();
  while (true) {
    check_();
    const auto left =
        timeout - std::min(timeout, std::chrono::duration_cast<Milliseconds>(Clock::now() - begin));
    try {
      PrefixStore::wait(keys, std::min(kSlice, left));
      return;
    } catch (const Error& error) {
      if (error.code() != Errc::timeout || left <= kSlice) {
        throw;
      }
    }
  }
}

std::string EpochStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  wait(std::span(&name, 1), timeout);
  return PrefixStore::get(key, timeout);
}

std::vector<std::string> EpochStore::multi_get(std::span<const std::string> keys,
                                               Milliseconds timeout) {
  wait(keys, timeout);
  return PrefixStore::multi_get(keys, timeout);
}

}  // namespace acc::detail
