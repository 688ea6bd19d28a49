// SPDX-License-Identifier: Apache-2.0
#include "server/store_clients.hpp"

#include "acc/base/error.hpp"
#include "server/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace acc::rendezvous {
namespace {

/// Protocol handler of a TCPStore client whose address may use only a part of the store.
class LimitedSession final : public Session {
 public:
  struct Limits {
    std::int64_t keys = 0;
    std::int64_t bytes = 0;
  };

  LimitedSession(KeyTable& table, KeyTable::WaiterId id, wire::RequestDecoder& decoder,
                 std::shared_ptr<Peer> peer, Limits limits)
      : Session(table, id, decoder), table_(table), peer_(std::move(peer)), limits_(limits) {}

  bool step(std::string_view& bytes, std::string& out) override {
    const auto keys = num_keys();
    const auto used = num_bytes();
    const bool is_served = Session::step(bytes, out);
    peer_->keys += num_keys() - keys;
    peer_->bytes += num_bytes() - used;
    if (peer_->keys > limits_.keys || peer_->bytes > limits_.bytes) {
      throw Error(Errc::out_of_memory,
                  fmt::format("the clients of {} have added {} keys with {} bytes; one address may "
                              "add {} keys with {} bytes (max_peer_percent)",
                              peer_->name, peer_->keys, peer_->bytes, limits_.keys, limits_.bytes));
    }
    return is_served;
  }

 private:
  [[nodiscard]] std::int64_t num_keys() const {
    return static_cast<std::int64_t>(table_.values().size());
  }
  [[nodiscard]] std::int64_t num_bytes() const { return static_cast<std::int64_t>(table_.bytes()); }

  KeyTable& table_;
  std::shared_ptr<Peer> peer_;
  Limits limits_;
};

}  // namespace

std::unique_ptr<ProtocolHandler> StoreClients::open(Connection::Id id, const ClientFacts& facts) {
  if (!facts.peer->is_limited) {
    return std::make_unique<Session>(keys_, id, decoder_);
  }
  const auto share = [&](std::size_t limit) {
    return static_cast<std::int64_t>(
        std::min<std::size_t>(clients_.share_of(limit), std::numeric_limits<std::int64_t>::max()));
  };
  return std::make_unique<LimitedSession>(
      keys_, id, decoder_, facts.peer,
      LimitedSession::Limits{share(options_.max_keys), share(options_.max_bytes)});
}

void StoreClients::reconfigure() {
  keys_.limit_keys(options_.max_keys);
  decoder_.limit(options_.max_frame_bytes);
}

}  // namespace acc::rendezvous
