// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/prefix_store.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::detail {

/// The job's store while the membership is in one epoch. A wait for a key ends when `check` throws:
/// the rank that should set it may be gone. Clones wait as long as they are told.
class EpochStore final : public rendezvous::PrefixStore {
 public:
  EpochStore(std::function<void()> check, std::uint32_t epoch,
             std::shared_ptr<rendezvous::Store> store);

  std::string get(std::string_view key, Milliseconds timeout) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys,
                                     Milliseconds timeout) override;

 private:
  std::function<void()> check_;
};

}  // namespace acc::detail
