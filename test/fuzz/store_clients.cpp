// Some clients of one store, whose bytes come whole or cut: everyone's replies must be the same.
// Input: eight lengths of pieces; then again and again a client, a u16 length, its bytes.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "session.hpp"

#include <array>
#include <optional>
#include <string>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::rendezvous::KeyTable;
using acc::rendezvous::Session;

constexpr int kNumClients = 4;

/// The server without its sockets.
class Server {
 public:
  Server() {
    for (std::size_t id = 0; id < kNumClients; ++id) {
      sessions_[id].emplace(table_, id);
    }
  }

  void receive(std::size_t client, std::string_view bytes) {
    auto& session = sessions_[client];
    if (!session) {
      return;
    }
    try {
      session->feed(bytes);
      while (session->step(replies_[client])) {
      }
    } catch (const acc::Error& error) {
      require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
      session.reset();
      replies_[client] += "closed";
    }
  }

  [[nodiscard]] const std::array<std::string, kNumClients>& replies() const { return replies_; }

 private:
  std::array<std::string, kNumClients> replies_;
  KeyTable table_{[this](KeyTable::WaiterId id) {
    require(sessions_.at(id).has_value(), "only who is here is released");
    replies_.at(id).push_back(acc::rendezvous::wire::kReleased);
  }};
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
    require(whole.replies() == cut.replies(), "replies do not depend on how the bytes are cut");
  }
  return 0;
}
