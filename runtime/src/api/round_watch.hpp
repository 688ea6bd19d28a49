// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/membership_page.hpp"
#include "acc/settings/sharding_settings.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

namespace acc::detail {

/// Requests a stop when the launcher says that ranks of an epoch of the membership are lost or,
/// while the ranks meet, that the epoch has ended otherwise. For calls of the store, which may be
/// on the machine that is lost: no reply comes, and no connection ends. Has a thread.
class RoundWatch {
 public:
  /// Null for a job on one machine, whose store is its launcher's, and without a page.
  /// meets: false when the ranks have met.
  static std::unique_ptr<RoundWatch> make(const settings::RuntimeSettings& settings,
                                          std::uint32_t epoch,
                                          std::shared_ptr<const std::atomic<bool>> meets);
  ~RoundWatch();
  RoundWatch(const RoundWatch&) = delete;
  RoundWatch& operator=(const RoundWatch&) = delete;

  [[nodiscard]] std::stop_token token() const { return over_.get_token(); }

 private:
  RoundWatch(const std::string& page, std::uint32_t epoch,
             std::shared_ptr<const std::atomic<bool>> meets);
  void run();

  MembershipPage page_;
  std::uint32_t epoch_;
  std::stop_source over_;
  std::shared_ptr<const std::atomic<bool>> meets_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace acc::detail
