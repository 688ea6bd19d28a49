// SPDX-License-Identifier: Apache-2.0
// Fuzzes the proof of a token: bytes of a stranger never admit it, however they are split, and an
// honest handshake in which bytes of any message are changed never ends well for both sides.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "secure/proof.hpp"

#include <algorithm>
#include <memory>
#include <string>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::rendezvous::Role;
using acc::rendezvous::ServerSecurity;
using acc::rendezvous::Tokens;
using acc::rendezvous::secure::ClientProof;
using acc::rendezvous::secure::ServerProof;

const Tokens kTokens({std::string(32, 't')});
const std::string kBinding(32, 'b');

/// Gives bytes to one side; returns its reply. An error ends the side.
template <typename Proof>
std::string hear(Proof& proof, std::string& unread, std::string_view bytes, bool& is_closed) {
  std::string out;
  if (is_closed) {
    return out;
  }
  unread += bytes;
  std::string_view rest = unread;
  try {
    while (proof.step(rest, out)) {
    }
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::protocol || error.code() == acc::Errc::disagreement,
            "bad bytes are an error of protocol or proof");
    is_closed = true;
  }
  unread.erase(0, unread.size() - rest.size());
  return out;
}

struct Server {
  explicit Server(const ServerSecurity& security) : proof(security, kBinding) {}
  ServerProof proof;
  std::string unread;
  bool is_closed = false;
  std::size_t num_sent = 0;

  std::string send(std::string_view bytes) {
    std::string reply = hear(proof, unread, bytes, is_closed);
    num_sent += reply.size();
    return reply;
  }
};

/// Changes one byte if the input says so; true if it did.
bool change(Input& input, std::string& message) {
  const std::size_t at = input.two_bytes();
  const auto with = static_cast<char>(input.byte());
  if (at < message.size()) {
    message[at] = static_cast<char>(message[at] ^ with);
  }
  return at < message.size() && with != 0;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const ServerSecurity security{kTokens, std::nullopt, nullptr};

  ClientProof client(kTokens, {Role::agent, "job"}, kBinding);
  Server honest(security);
  std::string client_unread;
  bool client_is_closed = false;
  std::string message = client.hello();
  bool is_changed = change(input, message);
  for (int i = 0; i < 2; ++i) {
    message = honest.send(message);
    is_changed = change(input, message) || is_changed;
    message = hear(client, client_unread, message, client_is_closed);
    is_changed = (i == 0 && change(input, message)) || is_changed;
  }
  require(is_changed != (client.is_over() && honest.proof.admission()),
          "both sides end well if and only if nothing was changed");

  Cuts cuts(input);
  std::string_view bytes = input.rest();
  Server whole(security);
  whole.send(bytes);
  Server cut(security);
  while (!bytes.empty()) {
    cut.send(cuts.take_piece(bytes));
  }
  require(!whole.proof.admission() && !cut.proof.admission(), "a stranger is not admitted");
  require(whole.is_closed == cut.is_closed && whole.num_sent == cut.num_sent,
          "the replies do not depend on how the bytes are split");
  return 0;
}
