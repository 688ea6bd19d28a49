// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/server.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "journal/journal_file.hpp"
#include "server/admin_session.hpp"
#include "server/agent_connections.hpp"
#include "server/clients.hpp"
#include "server/durable_state.hpp"
#include "server/leadership.hpp"
#include "server/session.hpp"
#include "server/watchers.hpp"

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;

namespace {

/// Returns the options of a server that has a board if it forms rounds.
ServerOptions with_board(ServerOptions options) {
  if (options.forms_rounds && !options.board) {
    options.board = std::make_shared<Board>();
  }
  return options;
}

/// Returns freed memory to the system. glibc keeps free memory that lies below memory in use: after
/// a load of large requests that can be a sixth of their peak, for as long as the process lives.
class FreedMemory {
 public:
  explicit FreedMemory(Turns& turns) : timer_(turns, [] { malloc_trim(0); }) {}

  /// Takes the number of bytes that are in use now. A second after they have fallen by 64 MiB, free
  /// memory is returned; the time between bounds what that costs under a lasting load.
  void note(std::size_t in_use) {
    most_ = std::max(most_, in_use);
    if (most_ - in_use < kWorthReturning || timer_.is_set()) {
      return;
    }
    most_ = in_use;
    timer_.after(std::chrono::seconds(1));
  }

 private:
  static constexpr std::size_t kWorthReturning = std::size_t{64} << 20;

  Turns::Timer timer_;
  std::size_t most_ = 0;  // most bytes in use since the timer was set
};

}  // namespace

/// Connects the parts of a Server, which all run on one thread: chooses the part that serves a
/// client, and passes on what happens in one part and concerns others. Handlers that wait hold a
/// shared_ptr to it, so the Server may be destroyed at any time.
struct Server::Impl final : std::enable_shared_from_this<Impl> {
  Impl(asio::io_context& io, std::vector<Listener> listeners, const ServerOptions& options)
      : options_(with_board(options)),
        // A released waiter is connected: `closed` cancels its wait.
        state_(options_,
               [this](Connection::Id id) {
                 clients_.at(id).send({&wire::kReleased, 1});
               }),
        clients_(io, std::move(listeners), options_, state_.changes(), calls_of_clients()),
        decoder_(options_.max_frame_bytes),
        agents_(clients_, state_),
        watchers_(clients_, options_, [this] { return facts(); }),
        leadership_(clients_, options_,
                    {.elected =
                         [this](auto storage, auto is_certain) {
                           lead(std::move(storage), std::move(is_certain));
                         },
                     .lost = [this] { stand_by(); }}),
        freed_memory_(clients_.turns()) {}
  ~Impl() { end_threads(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void start() {
    if (!options_.state_dir.empty()) {
      recover(std::make_unique<JournalFile>(options_.state_dir, options_.syncs),
              options_.state_dir.string());
    }
    clients_.start(weak_from_this());
    agents_.await_deadline();
    clients_.turns().end();
    leadership_.take_part();
  }

  /// Shutdown with time for queued replies. Agents get the patient mode, because their last message
  /// may be a round result that must not be lost; ServerOptions::stop_timeout limits the time.
  void stop() {
    clients_.stop();
    for (const Connection::Id id : clients_.ids()) {
      clients_.at(id).finish(agents_.contains(id) ? Connection::ShutdownMode::patient
                                                  : Connection::ShutdownMode::brief);
    }
    clients_.turns().end();
  }

  void reconfigure(ServerOptions options) {
    options.forms_rounds = options_.forms_rounds;
    options.board = std::move(options_.board);
    options.syncs = options_.syncs;
    options.state_dir = std::move(options_.state_dir);
    options.etcd = std::move(options_.etcd);
    options.address = std::move(options_.address);
    options_ = std::move(options);
    clients_.reconfigure();
    state_.keys().limit_keys(options_.max_keys);
    decoder_.limit(options_.max_frame_bytes);
    watchers_.reconfigure();
    state_.share_memory();
  }

  void renew_store() {
    for (const Connection::Id id : clients_.ids()) {
      if (!agents_.contains(id) && !watchers_.contains(id)) {
        clients_.close(id);
      }
    }
    clear_keys();
    clients_.turns().end();
  }

  /// Immediate shutdown, for the destructor. `done` of `retire` is not called.
  void close_all() {
    clients_.stop();
    agents_.revoke_retirement();
    clients_.close_all();
    clients_.turns().end();
  }

  /// Ends the threads of the log and of the election, which use other parts and post to the event
  /// loop. The loop may end before this object.
  void end_threads() {
    state_.close();
    leadership_.end();
  }

  Clients::Calls calls_of_clients() {
    return {.open = [this](Connection::Id id, char first,
                           const ClientFacts& facts) { return open(id, first, facts); },
            .closed = [this](Connection::Id id) { closed(id); },
            .idle = [this] { clear_keys(); },
            .turns = {.commit = [this] { return commit(); }, .ended = [this] { turn_ended(); }}};
  }

  /// Chooses the protocol by the first byte of a connection (docs/protocol.md).
  std::unique_ptr<ProtocolHandler> open(Connection::Id id, char first, const ClientFacts& facts) {
    const bool has_tokens = options_.security && options_.security->tokens;
    const bool is_stranger = has_tokens && !facts.admission && !facts.peer->is_trusted;
    const auto may_be = [&](Role role) {
      return !is_stranger && (!facts.admission || facts.admission->role == role);
    };
    if (first == static_cast<char>(wire::Opcode::validate) && options_.serves_store &&
        may_be(Role::store) && leadership_.leads()) {
      return open_store(id, facts);
    }
    if (first == rounds::kHello.front() && options_.forms_rounds) {
      if (is_stranger) {
        agents_.refuse(id,
                       "this rendezvous requires a token: set ACC_RENDEZVOUS_TOKEN_FILE to a file "
                       "with it on every machine");
      } else if (may_be(Role::agent) && leadership_.leads()) {
        return agents_.open(
            id, facts.admission ? std::optional(facts.admission->run_id) : std::nullopt);
      } else if (may_be(Role::agent)) {
        return agents_.redirect(id, leadership_.leader());
      }
    }
    // A TCP port needs a proof, also on loopback: all users of the machine can connect to it.
    const bool is_administrator =
        facts.admission ? facts.admission->role == Role::administrator : facts.peer->is_trusted;
    if (first == kAdminHello.front() && is_administrator) {
      return std::make_unique<AdminSession>(clients_, state_, agents_, leadership_);
    }
    const bool is_letter = (first >= 'A' && first <= 'Z') || (first >= 'a' && first <= 'z');
    return is_letter ? watchers_.open(id, facts) : nullptr;
  }

  std::unique_ptr<ProtocolHandler> open_store(Connection::Id id, const ClientFacts& facts) {
    const auto share = [&](std::size_t limit) {
      return static_cast<std::int64_t>(std::min<std::size_t>(
          clients_.share_of(limit), std::numeric_limits<std::int64_t>::max()));
    };
    std::optional<Session::Share> limits;
    if (facts.peer->is_limited) {
      limits = {facts.peer, share(options_.max_keys), share(options_.max_bytes)};
    }
    return std::make_unique<Session>(state_.keys(), id, decoder_, std::move(limits));
  }

  void closed(Connection::Id id) {
    state_.keys().cancel(id);  // no release byte for a closed connection
    watchers_.closed(id);
    agents_.closed(id);
  }

  void clear_keys() {
    state_.keys().clear();
    clients_.forget_keys();
  }

  bool commit() {
    try {
      return state_.commit();
    } catch (const LeadershipLost& lost) {
      leadership_.resign(lost.what());  // stand_by follows; until then nothing is written
      return false;
    }
  }

  void turn_ended() {
    freed_memory_.note(clients_.num_buffered() + state_.bytes());
    clients_.end_if_stopped();
    agents_.go_on_retiring();  // may destroy the Server: nothing may follow
  }

  void recover(std::unique_ptr<JournalStorage> storage, const std::string& place,
               std::function<bool()> may_act = {}) {
    const auto on_written = [this] { clients_.turns().post([] {}); };
    state_.recover(std::move(storage), place, on_written, std::move(may_act));
    clients_.skip_ids(state_.jobs().first_free_agent());
  }

  /// Recovers the state that the last leader has left, and serves.
  void lead(std::unique_ptr<JournalStorage> storage, std::function<bool()> is_certain) {
    clients_.close_all();  // their ids may be those of the last leader's connections in the log
    recover(std::move(storage), "etcd", std::move(is_certain));
    agents_.await_deadline();
    logger(Component::rendezvous)
        .info("leading: {} jobs, {} keys", state_.jobs().size(), state_.keys().values().size());
  }

  /// Ends all connections without another byte, and forgets everything. No machine is lost to a
  /// job: the next leader expects them.
  void stand_by() {
    state_.forget();
    clients_.close_all();
    agents_.await_deadline();
  }

  [[nodiscard]] watch::ServerFacts facts() const {
    return {.num_keys = state_.keys().values().size(),
            .is_stopping = clients_.is_stopping() || agents_.is_retiring(),
            .leads = leadership_.leads()};
  }

  ServerOptions options_;
  DurableState state_;
  Clients clients_;
  wire::RequestDecoder decoder_;  // lent to the session of the store that is served
  AgentConnections agents_;
  Watchers watchers_;
  Leadership leadership_;
  FreedMemory freed_memory_;
};

Server::Server(asio::io_context& io, std::vector<Listener> listeners, ServerOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(listeners), options)) {
  impl_->start();
}

Server::Server(asio::io_context& io, const std::string& host, std::uint16_t port,
               ServerOptions options)
    : Server(io, listen_on({host}, port), options) {}

Server::~Server() {
  try {
    impl_->close_all();
  } catch (const Error& error) {  // of the log
    logger(Component::rendezvous).error("{}", error.what());
  }
  impl_->end_threads();
}

std::uint16_t Server::port() const noexcept {
  return impl_->clients_.port();
}

std::size_t Server::num_connections() const noexcept {
  return impl_->clients_.size();
}

std::size_t Server::num_jobs() const noexcept {
  return impl_->state_.jobs().size();
}

bool Server::is_refusing() const noexcept {
  return impl_->state_.jobs().is_refusing();
}

std::size_t Server::num_keys() const noexcept {
  return impl_->state_.keys().values().size();
}

bool Server::leads() const noexcept {
  return impl_->leadership_.leads();
}

void Server::reconfigure(const ServerOptions& options) {
  impl_->reconfigure(options);
}

void Server::renew_store() {
  impl_->renew_store();
}

void Server::retire(std::function<void()> done) {
  impl_->agents_.retire(std::move(done));
  impl_->clients_.turns().end();
}

void Server::stop() {
  impl_->stop();
}

}  // namespace acc::rendezvous
