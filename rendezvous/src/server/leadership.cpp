// SPDX-License-Identifier: Apache-2.0
#include "server/leadership.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "etcd/journal_in_etcd.hpp"

#include <utility>

namespace acc::rendezvous {

Leadership::Leadership(Clients& clients, const ServerOptions& options, Calls calls)
    : clients_(clients), options_(options), calls_(std::move(calls)), leads_(!options.etcd) {}

/// Returns a function for the thread of the election that calls `what` in the event loop.
template <typename Argument>
auto Leadership::in_loop(void (Leadership::*what)(const Argument&)) {
  return [this, what](const Argument& argument) {
    clients_.turns().post([this, what, argument] {
      if (!clients_.is_stopping()) {
        (this->*what)(argument);
      }
    });
  };
}

void Leadership::take_part() {
  if (options_.etcd) {
    election_.emplace(*options_.etcd, options_.address,
                      EtcdLeadership::Events{.on_elected = in_loop(&Leadership::lead),
                                             .on_lost = in_loop(&Leadership::stand_by),
                                             .on_leader = in_loop(&Leadership::learn_leader),
                                             .on_refused = in_loop(&Leadership::refuse_etcd)});
  }
}

void Leadership::refuse_etcd(const std::string& why) {
  throw Error(Errc::config, "state: " + why);
}

void Leadership::learn_leader(const std::string& leader) {
  leader_ = leader;
  logger(Component::rendezvous).info("standing by: {} leads", printable(leader_));
}

void Leadership::lead(const std::int64_t& token) {
  const auto is_certain = [this] { return election_->is_certain(); };
  try {
    calls_.elected(std::make_unique<JournalInEtcd>(*options_.etcd, token, is_certain), is_certain);
  } catch (const LeadershipLost& lost) {
    return resign(lost.what());  // stand_by follows
  }
  leads_ = true;
}

void Leadership::stand_by(const std::string& why) {
  logger(Component::rendezvous).warn("this server does not lead any more: {}", why);
  leads_ = false;
  leader_.clear();
  calls_.lost();
}

}  // namespace acc::rendezvous
