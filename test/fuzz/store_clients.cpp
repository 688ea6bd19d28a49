// SPDX-License-Identifier: Apache-2.0
// Fuzzes the sessions of several clients of one store: replies must be the same for whole and split
// input. Input: eight lengths of pieces; then repeatedly a client, a u16 length and its bytes.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "server/session.hpp"

#include <array>
#include <optional>
#include <string>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::fuzz::Unread;
using acc::rendezvous::KeyTable;
using acc::rendezvous::Session;

constexpr int kNumClients = 4;
// Small limits, so that inputs reach them.
constexpr std::size_t kMaxFrameBytes = 600;
constexpr KeyTable::Limits kLimits{.max_keys = 12, .max_bytes = 4096};

/// The server without sockets.
class Server {
 public:
  Server() {
    for (std::size_t id = 0; id < kNumClients; ++id) {
      sessions_[id].emplace(table_, id, decoder_);
    }
  }

  void receive(std::size_t client, std::string_view bytes) {
    auto& session = sessions_[client];
    if (!session) {
      return;
    }
    try {
      unread_[client].feed(
          bytes, [&](std::string_view& rest) { return session->step(rest, replies_[client]); });
    } catch (const acc::Error& error) {
      require(error.code() == acc::Errc::protocol || error.code() == acc::Errc::out_of_memory,
              "bad bytes are a protocol error, unless they exceed a limit");
      session.reset();
      replies_[client] += "closed";
    }
  }

  [[nodiscard]] const std::array<std::string, kNumClients>& replies() const { return replies_; }

  /// Checks that the memory counted for keys and awaited names is released with them.
  void end() {
    for (auto& session : sessions_) {
      session.reset();
    }
    while (!table_.values().empty()) {
      table_.erase(std::string(table_.values().begin()->first));
    }
    require(table_.bytes() <= kLimits.max_bytes, "the count of bytes does not fall below 0");
    table_.clear();
    require(table_.bytes() == 0, "no memory is counted for closed clients");
  }

 private:
  std::array<std::string, kNumClients> replies_;
  std::array<Unread, kNumClients> unread_;
  KeyTable table_{[this](KeyTable::WaiterId id) {
                    require(sessions_.at(id).has_value(), "only connected clients are released");
                    replies_.at(id).push_back(acc::rendezvous::wire::kReleased);
                  },
                  kLimits};
  acc::rendezvous::wire::RequestDecoder decoder_{kMaxFrameBytes};
  std::array<std::optional<Session>, kNumClients> sessions_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Cuts cuts(input);
  Server whole;
  Server cut;
  while (!input.empty()) {
    const auto client = static_cast<std::size_t>(input.below(kNumClients));
    std::string_view bytes = input.take(input.two_bytes());
    whole.receive(client, bytes);
    while (!bytes.empty()) {
      cut.receive(client, cuts.take_piece(bytes));
    }
    require(whole.replies() == cut.replies(), "replies do not depend on how the bytes are split");
  }
  whole.end();
  cut.end();
  return 0;
}
