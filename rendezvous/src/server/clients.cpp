// SPDX-License-Identifier: Apache-2.0
#include "server/clients.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "secure/proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

namespace acc::rendezvous {
namespace {

// Pause after a failed accept4 when the process is out of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

// Cost in the unit of Connection::kTurnCost.
constexpr std::size_t kAcceptCost = 64;

/// Returns the number of connections of one peer that may be in their handshake at a time.
std::size_t max_pending(const ServerOptions& options) {
  constexpr std::size_t kLeast = 64;
  return std::max(kLeast, options.max_connections / 4);
}

/// Protocol handler of a client that proves its token; another one follows it.
class ProofSession : public ProtocolHandler {
 public:
  /// `on_failure` is called once if the proof is wrong; true: it is that of a former token.
  ProofSession(std::shared_ptr<const ServerSecurity> security, std::string binding,
               std::function<void(bool was_right)> on_failure)
      : security_(std::move(security)),
        proof_(*security_, std::move(binding)),
        on_failure_(std::move(on_failure)) {}

  bool step(std::string_view& bytes, std::string& out) override {
    try {
      return proof_.step(bytes, out);
    } catch (...) {
      on_failure_(proof_.was_right());
      throw;
    }
  }
  [[nodiscard]] bool is_open() const noexcept override { return false; }
  [[nodiscard]] unsigned cost() const noexcept override { return 256; }  // reads the token file
  [[nodiscard]] const secure::Admission* admission() const noexcept override {
    return proof_.admission() ? &*proof_.admission() : nullptr;
  }

 private:
  std::shared_ptr<const ServerSecurity> security_;
  secure::ServerProof proof_;
  std::function<void(bool)> on_failure_;
};

// Connections accepted per turn, so that connected clients are served in between.
constexpr int kBatch = 64;

/// True if the error concerns one connection only, which the client has aborted or the firewall
/// refuses: the next accept4 may succeed.
bool is_passing(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

Acceptor::Acceptor(Listener listener, ReadySet& set, Accepted accepted, Exhausted exhausted)
    : listener_(std::move(listener)),
      set_(set),
      accepted_(std::move(accepted)),
      exhausted_(std::move(exhausted)) {
  set_.add(listener_.socket.get(), EPOLLIN, *this);
}

Acceptor::~Acceptor() {
  set_.remove(listener_.socket.get());
}

void Acceptor::ready(std::uint32_t /*events*/) {
  for (int i = 0; i < kBatch; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UniqueFd client(accept4(listener_.socket.get(), reinterpret_cast<sockaddr*>(&address), &size,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client) {
      accepted_(std::move(client), address);
      continue;
    }
    if (is_passing(errno)) {
      continue;
    }
    if (errno != EAGAIN) {
      set_.change(listener_.socket.get(), 0, *this);
      exhausted_(errno);
    }
    return;
  }
}

void Acceptor::resume() {
  set_.change(listener_.socket.get(), EPOLLIN, *this);
}

Clients::Clients(boost::asio::io_context& io, std::vector<Listener> listeners,
                 const ServerOptions& options, const RecordedChanges& changes, Calls calls)
    : options_(options),
      calls_(std::move(calls)),
      turns_(io, connections_, calls_.turns),
      shared_{.turns = turns_, .options = options, .changes = changes},
      peers_(options.max_failed_proofs),
      handshakes_(turns_, options.handshake_timeout,
                  [this](Id id) {
                    if (Connection* const connection = find(id);
                        connection != nullptr && !connection->is_open()) {
                      connection->close();
                      turns_.spend(Turns::kFlushCost);
                    }
                  }),
      shutdowns_(turns_, options.stop_timeout,
                 [this](Id id) {
                   close(id);
                   turns_.spend(Turns::kFlushCost);
                 }),
      idle_timer_(turns_,
                  [this] {
                    if (connections_.empty()) {
                      calls_.idle();
                    }
                  }),
      accept_timer_(turns_, [this] { std::ranges::for_each(acceptors_, &Acceptor::resume); }) {
  for (Listener& listener : listeners) {
    port_ = port_ == 0 ? listener.port : port_;
    acceptors_.emplace_back(
        std::move(listener), turns_.ready(),
        [this](UniqueFd client, const sockaddr_storage& address) {
          accept(std::move(client), address);
        },
        [this](int error) { pause_accepting(std::strerror(error)); });
  }
}

void Clients::start(std::weak_ptr<void> server) {
  turns_.start(std::move(server));
  watch_idleness();
}

void Clients::reconfigure() {
  handshakes_.change(options_.handshake_timeout);
  shutdowns_.change(options_.stop_timeout);
  peers_.limit_failures(options_.max_failed_proofs);
}

void Clients::stop() {
  stop_accepting();
  is_stopping_ = true;
}

void Clients::end_if_stopped() {
  if (is_stopping_ && connections_.empty()) {
    turns_.close();
  }
}

std::vector<Clients::Id> Clients::ids() const {
  std::vector<Id> ids;
  for (const auto& [id, connection] : connections_) {
    ids.push_back(id);
  }
  return ids;
}

Connection* Clients::find(Id id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void Clients::close(Id id) {
  if (Connection* const connection = find(id)) {
    connection->close();
  }
}

void Clients::close_all() {
  for (const Id id : ids()) {
    close(id);
  }
}

// New clients.

void Clients::accept(UniqueFd client, const sockaddr_storage& address) {
  turns_.spend(kAcceptCost);
  peers_.tidy(Turns::Clock::now());
  std::shared_ptr<Peer> peer = peers_.of(client.get(), address);
  if (const std::string refusal = refusal_of(*peer); !refusal.empty()) {
    if (warnings_()) {
      logger(Component::rendezvous).warn("{}", refusal);
    }
    return;
  }
  const Id id = next_id_++;
  try {
    Connection::Owner& owner = *this;
    connections_.emplace(id,
                         std::make_unique<Connection>(std::move(client), id, peer, shared_, owner));
  } catch (const std::exception& error) {
    return pause_accepting(error.what());
  }
  // A client that is shut out receives an alert when it begins with TLS.
  (is_shut_out(*peer) ? shutdowns_ : handshakes_).add(id);
  idle_timer_.cancel();
}

/// Returns the limit that forbids a further connection of this peer; "" if there is none.
std::string Clients::refusal_of(const Peer& peer) const {
  if (peer.pending >= max_pending(options_)) {
    return fmt::format(
        "refusing connections of {}: {} of its connections have not completed a handshake",
        peer.name, peer.pending);
  }
  if (peer.is_limited && peer.connections >= share_of(options_.max_connections)) {
    return fmt::format("refusing connections of {}: it has {} connections (max_peer_percent)",
                       peer.name, peer.connections);
  }
  if (connections_.size() >= options_.max_connections) {
    return fmt::format("refusing new connections: {} clients are connected (max_connections)",
                       connections_.size());
  }
  return "";
}

std::size_t Clients::share_of(std::size_t limit) const {
  const auto percent = static_cast<std::size_t>(options_.max_peer_percent);
  return std::max<std::size_t>(1, limit / 100 * percent + limit % 100 * percent / 100);
}

/// Retries after a pause: descriptors may have been freed by then.
void Clients::pause_accepting(const std::string& why) {
  if (warnings_()) {
    logger(Component::rendezvous).warn("cannot accept clients: {}", why);
  }
  accept_timer_.after(kAcceptPause);
}

/// Starts the idle timeout; `accept` cancels it.
void Clients::watch_idleness() {
  if (options_.idle_timeout.count() > 0 && !is_stopping_) {
    idle_timer_.after(options_.idle_timeout);
  }
}

// Proofs of a token.

std::unique_ptr<ProtocolHandler> Clients::open(Id id, char first, const ClientFacts& facts) {
  if (first == secure::kProofHello.front() && !facts.binding.empty() && !facts.admission) {
    return open_proof(id, facts);
  }
  return calls_.open(id, first, facts);
}

std::unique_ptr<ProtocolHandler> Clients::open_proof(Id id, const ClientFacts& facts) {
  const auto& security = options_.security;
  if (!security->tokens) {
    at(id).send({&secure::kProofRefusal, 1});
    return nullptr;
  }
  return std::make_unique<ProofSession>(
      security, facts.binding,
      [this, peer = facts.peer](bool was_right) { note_failure(*peer, was_right); });
}

std::unique_ptr<secure::TlsChannel> Clients::encrypt(const Peer& peer) {
  const auto& security = options_.security;
  const std::size_t most = options_.max_buffered_bytes / 8 / Connection::kHandshakeBytes;
  if (security && peer.handshakes >= std::max<std::size_t>(most, 1)) {
    throw Error(Errc::out_of_memory,
                fmt::format("{} connections of its address are in the handshake of TLS, with {} "
                            "bytes each: more than an eighth of max_buffered_bytes",
                            peer.handshakes, Connection::kHandshakeBytes));
  }
  return security ? secure::TlsChannel::server(*security->tls) : nullptr;
}

void Clients::admitted(Peer& peer) {
  Peers::succeeded(peer, Turns::Clock::now());
}

void Clients::note_failure(Peer& peer, bool was_right) {
  if (!was_right) {
    Peers::failed(peer, Turns::Clock::now());
  }
  if (warnings_()) {
    logger(Component::rendezvous)
        .warn("a client of {} {}", peer.name,
              was_right ? "has a token that was removed" : "could not prove the token");
  }
}

bool Clients::is_shut_out(Peer& peer) {
  const bool is = !peer.is_trusted && peers_.is_shut_out(peer, Turns::Clock::now());
  if (is && warnings_()) {
    logger(Component::rendezvous)
        .warn(
            "refusing connections of {}: it sent {} wrong token proofs within a minute "
            "(max_failed_proofs)",
            peer.name, peer.failures);
  }
  return is;
}

// The end of connections.

/// Closes the connection with the most buffered bytes, of the address with the most. Linear in the
/// number of connections, but rare.
void Clients::overfull() {
  turns_.count(connections_.size() / 8);
  const auto most = std::ranges::max_element(connections_, {}, [](const auto& each) {
    return std::pair(each.second->peer().buffered, each.second->num_buffered());
  });
  most->second->give_up();
}

void Clients::closed(Id id) {
  const auto found = connections_.find(id);
  turns_.destroy_later(std::move(found->second));
  connections_.erase(found);
  calls_.closed(id);
  if (connections_.empty()) {
    watch_idleness();
  }
}

}  // namespace acc::rendezvous
