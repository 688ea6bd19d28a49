// SPDX-License-Identifier: Apache-2.0
#include "api/round_watch.hpp"

#include "acc/base/error.hpp"
#include "state_dict/background_thread.hpp"

#include <utility>

namespace acc::detail {

std::unique_ptr<RoundWatch> RoundWatch::make(const settings::RuntimeSettings& settings,
                                             std::uint32_t epoch,
                                             std::shared_ptr<const std::atomic<bool>> meets) {
  if (settings.membership.empty() || settings.identity.num_nodes == 1) {
    return nullptr;
  }
  try {
    return std::unique_ptr<RoundWatch>(
        new RoundWatch(settings.membership, epoch, std::move(meets)));
  } catch (const Error&) {  // RuntimeState tells why
    return nullptr;
  }
}

RoundWatch::RoundWatch(const std::string& page, std::uint32_t epoch,
                       std::shared_ptr<const std::atomic<bool>> meets)
    : page_(page),
      epoch_(epoch),
      meets_(std::move(meets)),
      thread_(state_dict::background_thread("acc-round", [this] { run(); })) {}

RoundWatch::~RoundWatch() {
  ends_ = true;
  page_.wake();
  thread_.join();
}

void RoundWatch::run() {
  const auto is_over = [this] {
    return page_.round_end() || page_.has_lost(epoch_) || (*meets_ && page_.has_ended(epoch_));
  };
  while (!ends_ && !is_over()) {
    page_.await_news();
  }
  if (!ends_) {
    over_.request_stop();
  }
}

}  // namespace acc::detail
