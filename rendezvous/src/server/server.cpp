// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/server.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "etcd/etcd_leadership.hpp"
#include "etcd/journal_in_etcd.hpp"
#include "journal/journal.hpp"
#include "journal/journal_file.hpp"
#include "rounds/jobs.hpp"
#include "server/acceptor.hpp"
#include "server/admin_session.hpp"
#include "server/agent_session.hpp"
#include "server/connection.hpp"
#include "server/freed_memory.hpp"
#include "server/http_session.hpp"
#include "server/proof_session.hpp"
#include "server/session.hpp"
#include "watch/api.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

// The server: connections, the key table and the jobs, all on one thread.
//
// The unit of work is a *turn*: the epoll set is ready, or a timer expires, or a function of Server
// is called. A turn reads one buffer from each ready client, serves the requests in it and sends
// the replies. No client holds up the others: a connection serves requests of a limited cost per
// turn (Connection::kTurnCost), and the others wait in backlog_. No client holds up the heartbeats:
// whenever that cost has been spent, by any connections, the agents that have sent something are
// served (spend), and what is sent to agents goes first. These rules keep calls into the table and
// the jobs from being nested:
// - Bytes for other connections (a released waiter, messages to agents) are queued by
//   Connection::send. The connection is then "touched" and flushed after the current event.
// - A connection that is closed in a turn moves to gone_ and is destroyed at the end of the turn,
//   because later events of the same batch may still point to it.
// - Every entry point from outside (handler, timer, public function) ends with `end_turn`.
// - With a log, the changes of a batch of clients are one group, which another thread writes. Until
//   then the connections whose unsent bytes show one of them are held (Connection::Owner::held).
namespace acc::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

// Pause after a failed accept4 when the process is out of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

// Costs in the unit of Connection::kTurnCost.
constexpr std::size_t kAcceptCost = 64;
constexpr std::size_t kFlushCost = 32;

/// Queue of connections with one common time limit: the first that was added is due first, so no
/// sorting is needed. An entry stays until it is due, even if the connection has closed before.
class Deadlines {
 public:
  explicit Deadlines(std::chrono::milliseconds limit) : limit_(limit) {}

  void limit(std::chrono::milliseconds limit) noexcept { limit_ = limit; }
  void add(Connection::Id id) { limits_.push_back({Clock::now() + limit_, id}); }
  /// Time at which the first entry is due; time_point::max() if there is none.
  [[nodiscard]] Clock::time_point next() const {
    return limits_.empty() ? Clock::time_point::max() : limits_.front().at;
  }
  /// Removes and returns an entry that is due at `now`; nothing if there is none.
  std::optional<Connection::Id> take(Clock::time_point now) {
    if (next() > now) {
      return std::nullopt;
    }
    const Connection::Id id = limits_.front().id;
    limits_.pop_front();
    return id;
  }

 private:
  struct Limit {
    Clock::time_point at;
    Connection::Id id;
  };
  std::chrono::milliseconds limit_;
  std::deque<Limit> limits_;
};

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

// Kinds of the entries in the log: the values of KeyTable::Change, and from this one on those of
// Jobs::Change.
constexpr std::uint8_t kFirstOfJobs = 16;

Journal::Entry to_entry(KeyTable::Change change, std::string_view key, std::string_view value) {
  return {static_cast<std::uint8_t>(change), key, value};
}

Journal::Entry to_entry(rounds::Jobs::Change change, std::string_view first,
                        std::string_view second) {
  return {static_cast<std::uint8_t>(kFirstOfJobs + static_cast<std::uint8_t>(change)), first,
          second};
}

// Longest time for which a turn serves clients without returning to the event loop, which other
// users share (timers, signals, the launcher's work).
constexpr std::chrono::milliseconds kLongestTurn{5};

// Limits of HTTP clients, so that they leave connections to the store's clients: connections, and
// those of them that are streams of server-sent events.
constexpr std::size_t kMaxHttpClients = 1024;
constexpr std::size_t kMaxStreams = 256;
// Unread bytes of a stream beyond which its client loses the connection.
constexpr std::size_t kMaxUnreadStream = std::size_t{1} << 20;
// Interval of job entries in a stream, and number of intervals between comments, which keep proxies
// from closing an idle stream.
constexpr std::chrono::seconds kStreamInterval{1};
constexpr int kIntervalsPerComment = 15;
// The stream of a job ends this long after the job: its report may still come.
constexpr std::chrono::seconds kStreamEnd{2};

}  // namespace

/// State of a Server. Pending handlers hold a shared_ptr to it, so the Server may be destroyed at
/// any time.
class Server::Impl final : public std::enable_shared_from_this<Impl>, public Connection::Owner {
 public:
  Impl(asio::io_context& io, std::vector<Listener> listeners, const ServerOptions& options)
      : io_(io),
        shared_(io, options),
        table_(
            // A released waiter is connected: `closed` cancels its wait.
            [this](Connection::Id id) {
              connections_.at(id)->send({&wire::kReleased, 1});
            },
            {options.max_keys, options.max_bytes}),
        decoder_(options.max_frame_bytes),
        handshakes_(options.handshake_timeout),
        farewells_(options.stop_timeout),
        idle_http_(options.handshake_timeout),
        peers_(options.max_failed_proofs),
        jobs_(!options.state_dir.empty() || options.etcd),
        leads_(!options.etcd),
        limit_timer_(io, Clock::time_point::max()),
        accept_timer_(io),
        idle_timer_(io),
        round_timer_(io, Clock::time_point::max()),
        stream_timer_(io),
        freed_memory_(io),
        board_(options.board || !options.forms_rounds ? options.board : std::make_shared<Board>()) {
    if (board_) {
      board_->listen(listener_);
    }
    watch_jobs();
    if (!options.state_dir.empty()) {
      recover(std::make_unique<JournalFile>(options.state_dir, options.syncs));
    }
    for (Listener& listener : listeners) {
      port_ = port_ == 0 ? listener.port : port_;
      acceptors_.emplace_back(
          std::move(listener), shared_.ready,
          [this](UniqueFd client, const sockaddr_storage& address) {
            accept(std::move(client), address);
          },
          [this](int error) { pause_accepting(std::strerror(error)); });
    }
  }

  void start() {
    await_ready();
    watch_idleness();
    await_round();
    end_turn();
    if (shared_.options.etcd) {
      take_part_in_election();
    }
  }

  /// Shutdown with time for queued replies. Agents get the patient mode, because their last message
  /// may be a round result that must not be lost; farewells_ limits the time.
  void stop() {
    acceptors_.clear();
    stops_ = true;
    for (const Connection::Id id : all_connections()) {
      connections_.at(id)->finish(agents_.contains(id) ? Connection::ShutdownMode::patient
                                                       : Connection::ShutdownMode::brief);
    }
    end_turn();
  }

  /// Shutdown after the last agent has gone. While machines of a refused job are missing, the
  /// listeners stay open, so that each of them is told the reason.
  void retire(std::function<void()> done) {
    jobs_.close();
    retired_ = std::move(done);
    end_turn();
  }

  void reconfigure(const ServerOptions& options) {
    ServerOptions& mine = shared_.options;
    const bool forms_rounds = mine.forms_rounds;
    const bool syncs = mine.syncs;
    auto state_dir = std::move(mine.state_dir);
    auto etcd = std::move(mine.etcd);
    auto address = std::move(mine.address);
    mine = options;
    mine.forms_rounds = forms_rounds;
    mine.syncs = syncs;
    mine.state_dir = std::move(state_dir);
    mine.etcd = std::move(etcd);
    mine.address = std::move(address);
    table_.limit_keys(options.max_keys);
    share_memory();
    decoder_.limit(options.max_frame_bytes);
    handshakes_.limit(options.handshake_timeout);
    farewells_.limit(options.stop_timeout);
    idle_http_.limit(options.handshake_timeout);
    peers_.limit_failures(options.max_failed_proofs);
  }

  void renew_store() {
    for (const Connection::Id id : all_connections()) {
      if (!agents_.contains(id) && !http_.contains(id)) {
        close(id);
      }
    }
    table_.clear();
    peers_.forget_keys();
    end_turn();
  }

  /// Immediate shutdown, for the destructor. `done` of `retire` is not called.
  void close_all() {
    acceptors_.clear();
    retired_ = nullptr;
    stops_ = true;
    for (const Connection::Id id : all_connections()) {
      close(id);
    }
    end_turn();
    // Their threads post to the event loop, which may end before this object.
    table_.record_with({});
    jobs_.record_with({});
    shared_.may_act = {};
    journal_.reset();
    leadership_.reset();
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] std::size_t num_connections() const noexcept { return connections_.size(); }
  [[nodiscard]] std::size_t num_jobs() const noexcept { return jobs_.size(); }
  [[nodiscard]] bool is_refusing() const noexcept { return jobs_.is_refusing(); }
  [[nodiscard]] std::size_t num_keys() const noexcept { return table_.values().size(); }
  [[nodiscard]] bool leads() const noexcept { return leads_; }

 private:
  void await_ready() {
    shared_.ready.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) {
        self->turn();
      }
    });
  }

  void turn() {
    const auto end = Clock::now() + kLongestTurn;
    serve_agents();
    // Under load the next batch is usually ready already. After a single client it is not, so
    // another epoll_wait would be wasted.
    while ((serve_batch() > 1 || !backlog_.empty()) && Clock::now() < end) {
    }
    if (backlog_.empty()) {
      await_ready();
    } else {
      asio::post(io_, [self = shared_from_this()] { self->turn(); });
    }
    end_turn();
  }

  /// Handles the events that are ready now and gives each connection of the backlog a turn; returns
  /// the number of events.
  std::size_t serve_batch() {
    const auto batch = shared_.ready.take();
    for (const epoll_event& event : batch) {
      if (ReadySet::Watcher* const watcher = ReadySet::watcher(event)) {
        watcher->ready(event.events);
        flush_touched();
        spend(0);
      } else {
        serve_agents();
      }
    }
    for (std::size_t left = backlog_.size(); left > 0; --left) {
      const Connection::Id id = backlog_.front();
      backlog_.pop_front();
      if (const auto found = connections_.find(id); found != connections_.end()) {
        found->second->resume();
        flush_touched();
        spend(0);
      }
    }
    commit();
    return batch.size();
  }

  /// Serves agents that have sent something, and sends what is queued for agents.
  void serve_agents() {
    spent_ = 0;
    if (agents_.empty()) {
      return;
    }
    for (const epoll_event& event : shared_.ready.take_urgent()) {
      ReadySet::watcher(event)->ready(event.events);
      flush_agents();
    }
    flush_agents();
    spent_ = 0;
  }

  /// Counts a cost (Connection::kTurnCost), and serves the agents when it is time. Must not be
  /// called inside of a call into the table or the jobs.
  void spend(std::size_t cost) {
    spent_ += cost;
    if (spent_ >= Connection::kTurnCost) {
      serve_agents();
    }
  }

  /// Reads once from every client that has sent something by now. The bound ends the loop if
  /// clients send faster than they are read.
  void hear_all() {
    serve_agents();
    for (std::size_t seen = 0; seen <= connections_.size();) {
      const std::size_t count = serve_batch();
      if (count == 0) {
        return;
      }
      seen += count;
    }
  }

  void flush_touched() {
    flush_agents();
    for (std::size_t i = 0; i < touched_.size(); ++i) {  // flush may touch further connections
      touched_[i]->flush();
      spend(kFlushCost);
    }
    touched_.clear();
    flush_agents();
  }

  void flush_agents() {
    for (std::size_t i = 0; i < touched_agents_.size(); ++i) {
      touched_agents_[i]->flush();
    }
    touched_agents_.clear();
  }

  // The election of a leader among several servers.

  /// Returns a function for another thread that calls `what` in the event loop. This object joins
  /// that thread before it ends.
  template <typename... Arguments>
  auto in_loop(void (Impl::*what)(Arguments...)) {
    return [this, what](Arguments... arguments) {
      asio::post(io_, [weak = weak_from_this(), what, arguments...] {
        if (const auto self = weak.lock(); self && !self->stops_) {
          (self.get()->*what)(arguments...);
          self->end_turn();
        }
      });
    };
  }

  void take_part_in_election() {
    leadership_.emplace(*shared_.options.etcd, shared_.options.address,
                        EtcdLeadership::Events{.on_elected = in_loop(&Impl::lead),
                                               .on_lost = in_loop(&Impl::stand_by),
                                               .on_leader = in_loop(&Impl::learn_leader),
                                               .on_refused = in_loop(&Impl::refuse_etcd)});
  }

  void refuse_etcd(std::string why) { throw Error(Errc::config, "state: " + why); }

  void learn_leader(std::string leader) {
    leader_ = std::move(leader);
    logger(Component::rendezvous).info("standing by: {} leads", printable(leader_));
  }

  /// Recovers the state that the last leader has left, and serves.
  void lead(std::int64_t token) {
    // Their ids may be those of the last leader's connections, which the log names.
    for (const Connection::Id id : all_connections()) {
      close(id);
    }
    const auto is_certain = [this] { return leadership_->is_certain(); };
    try {
      recover(std::make_unique<JournalInEtcd>(*shared_.options.etcd, token, is_certain));
    } catch (const LeadershipLost& lost) {
      return leadership_->resign(lost.what());  // stand_by follows
    }
    leads_ = true;
    shared_.may_act = is_certain;
    await_round();
    logger(Component::rendezvous)
        .info("leading: {} jobs, {} keys", jobs_.size(), table_.values().size());
  }

  /// Ends all connections without another byte, and forgets everything.
  void stand_by(std::string why) {
    logger(Component::rendezvous).warn("this server does not lead any more: {}", why);
    leads_ = false;
    leader_.clear();
    for (const Connection::Id id : all_connections()) {
      close(id);
    }
    table_.record_with({});
    table_.clear();
    jobs_ = rounds::Jobs(true);
    if (board_) {
      board_->clear();
    }
    watch_jobs();
    journal_.reset();
    held_.clear();
    shared_.recorded = shared_.written = 0;
    shared_.may_act = {};
    await_round();
  }

  // The log.

  /// Restores the state from the log. Time goes on from the last event: time during which no server
  /// ran counts for no limit.
  void recover(std::unique_ptr<JournalStorage> storage) {
    is_recovering_ = true;
    journal_.emplace(
        std::move(storage), [this](const Journal::Entry& entry) { repeat(entry); },
        [this] {
          asio::post(io_, [weak = weak_from_this()] {
            if (const auto self = weak.lock()) {
              self->end_turn();
            }
          });
        });
    shift_ = jobs_.last_event() - Clock::now();
    next_id_ = std::max(next_id_, jobs_.first_free_agent());
    const auto record = [this](auto change, std::string_view first, std::string_view second) {
      return shared_.recorded = journal_->add(to_entry(change, first, second));
    };
    table_.record_with(record);
    jobs_.record_with(record);
    jobs_.recover(now());
    is_recovering_ = false;
    share_memory();
  }

  void repeat(const Journal::Entry& entry) {
    try {
      if (entry.kind <= static_cast<std::uint8_t>(KeyTable::Change::clear)) {
        table_.repeat(static_cast<KeyTable::Change>(entry.kind), entry.first, entry.second);
      } else if (entry.kind >= kFirstOfJobs &&
                 entry.kind <= to_entry(rounds::Jobs::Change::draining, "", "").kind) {
        jobs_.repeat(static_cast<rounds::Jobs::Change>(entry.kind - kFirstOfJobs), entry.first,
                     entry.second);
      } else {
        throw Error(Errc::protocol,
                    fmt::format("an entry has kind {}: it is the log of a newer acc-rendezvous",
                                entry.kind));
      }
    } catch (const Error& error) {
      throw Error(Errc::config,
                  fmt::format("cannot recover from the log in {}: {}",
                              leads_ ? shared_.options.state_dir.string() : "etcd", error.what()));
    }
  }

  /// Writes the changes of this turn to the log, unless earlier ones are still being written; then
  /// those of several turns become one group.
  void commit() {
    if (!journal_) {
      return;
    }
    try {
      while (write_changes()) {  // sending may close a connection, which changes its job
        flush_touched();
      }
    } catch (const LeadershipLost& lost) {
      leadership_->resign(lost.what());  // stand_by follows; until then nothing is written
    }
  }

  /// Returns true if changes have reached the log since the last call, and sends what shows them.
  bool write_changes() {
    if (journal_->is_long()) {
      journal_->rewrite([this](const Journal::Receive& add) {
        const auto save = [&](auto change, std::string_view first, std::string_view second) {
          add(to_entry(change, first, second));
        };
        table_.save(save);
        jobs_.save(save);
      });
    } else {
      journal_->commit();
    }
    if (shared_.written == journal_->num_written()) {
      return false;
    }
    shared_.written = journal_->num_written();
    for (const Connection::Id id : std::exchange(held_, {})) {
      if (const auto found = connections_.find(id); found != connections_.end()) {
        found->second->flush_held();
        spend(kFlushCost);
      }
    }
    return true;
  }

  /// Returns the time of the jobs.
  [[nodiscard]] Clock::time_point now() const { return Clock::now() + shift_; }

  /// End of every turn: sends what is queued, destroys closed connections, and completes `stop` and
  /// `retire` when their conditions hold.
  void end_turn() {
    flush_touched();
    commit();
    gone_.clear();
    freed_memory_.note(shared_.buffered + table_.bytes() + jobs_.bytes(), shared_from_this());
    // Without pending operations the io_context has no more work of this server.
    if (stops_ && connections_.empty()) {
      shared_.ready.close();
      for (asio::steady_timer* timer :
           {&limit_timer_, &accept_timer_, &idle_timer_, &round_timer_, &stream_timer_}) {
        timer->cancel();
      }
      freed_memory_.cancel();
    }
    if (retired_ && !is_refusing()) {
      acceptors_.clear();
      if (agents_.empty()) {
        std::exchange(retired_, nullptr)();  // may destroy the Server: nothing may follow
      }
    }
  }

  // Connections.

  void accept(UniqueFd client, const sockaddr_storage& address) {
    const ServerOptions& options = shared_.options;
    spend(kAcceptCost);
    peers_.tidy(Clock::now());
    std::shared_ptr<Peer> peer = peers_.of(client.get(), address);
    if (peer->pending >= max_pending()) {
      if (full_()) {
        logger(Component::rendezvous)
            .warn(
                "refusing connections of {}: {} of its connections have not completed a handshake",
                peer->name, peer->pending);
      }
      return;
    }
    if (peer->is_limited && peer->connections >= share_of(options.max_connections)) {
      if (full_()) {
        logger(Component::rendezvous)
            .warn("refusing connections of {}: it has {} connections (max_peer_percent)",
                  peer->name, peer->connections);
      }
      return;
    }
    if (connections_.size() >= options.max_connections) {
      if (full_()) {
        logger(Component::rendezvous)
            .warn("refusing new connections: {} clients are connected (max_connections)",
                  connections_.size());
      }
      return;
    }
    const Connection::Id id = next_id_++;
    try {
      connections_.emplace(
          id, std::make_unique<Connection>(std::move(client), id, peer, shared_, *this));
    } catch (const std::exception& error) {
      return pause_accepting(error.what());
    }
    // A client that is shut out receives an alert when it begins with TLS.
    is_shut_out(*peer) ? farewells_.add(id) : handshakes_.add(id);
    await_limits();
    idle_timer_.cancel();
  }

  /// Returns the number of connections of one peer that may be in their handshake at a time.
  [[nodiscard]] std::size_t max_pending() const {
    constexpr std::size_t kLeast = 64;
    return std::max(kLeast, shared_.options.max_connections / 4);
  }

  /// Returns the part of a limit that one peer may use.
  [[nodiscard]] std::size_t share_of(std::size_t limit) const {
    return std::max<std::size_t>(
        1, limit / 100 * static_cast<std::size_t>(shared_.options.max_peer_percent) +
               limit % 100 * static_cast<std::size_t>(shared_.options.max_peer_percent) / 100);
  }

  /// Retries after a pause: descriptors may have been freed by then.
  void pause_accepting(const std::string& why) {
    if (full_()) {
      logger(Component::rendezvous).warn("cannot accept clients: {}", why);
    }
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([self = shared_from_this()](const error_code& cancelled) {
      if (!cancelled) {
        std::ranges::for_each(self->acceptors_, &Acceptor::resume);
      }
    });
  }

  void close(Connection::Id id) {
    if (const auto found = connections_.find(id); found != connections_.end()) {
      found->second->close();
    }
  }

  bool is_shut_out(Peer& peer) override {
    const bool is = !peer.is_trusted && peers_.is_shut_out(peer, Clock::now());
    if (is && full_()) {
      logger(Component::rendezvous)
          .warn(
              "refusing connections of {}: it sent {} wrong token proofs within a minute "
              "(max_failed_proofs)",
              peer.name, peer.failures);
    }
    return is;
  }

  void admitted(Peer& peer) override { Peers::succeeded(peer, Clock::now()); }

  void touched(Connection& connection) override {
    (connection.is_urgent() ? touched_agents_ : touched_).push_back(&connection);
  }

  void unfinished(Connection::Id id) override { backlog_.push_back(id); }

  void spent(std::size_t cost) override { spent_ += cost; }

  void held(Connection::Id id) override { held_.push_back(id); }

  void leaving(Connection::Id id) override {
    farewells_.add(id);
    await_limits();
  }

  /// Closes the connection with the most buffered bytes, of the address with the most. Linear in
  /// the number of connections, but rare.
  void overfull() override {
    spent_ += connections_.size() / 8;
    const auto most = std::ranges::max_element(connections_, {}, [](const auto& each) {
      return std::pair(each.second->peer().buffered, each.second->num_buffered());
    });
    most->second->give_up();
  }

  void closed(Connection::Id id) override {
    table_.cancel(id);  // no release byte for a closed connection
    http_.erase(id);
    streams_.erase(id);
    const auto found = connections_.find(id);
    gone_.push_back(std::move(found->second));
    connections_.erase(found);
    // A server that recovers expects its agents again: their connections end with this process.
    if (agents_.erase(id) > 0 && leads_ && !(stops_ && journal_)) {
      rounds::Outbox out;
      jobs_.lose(id, "its connection has ended", now(), out);
      deliver(out);
    }
    if (connections_.empty()) {
      watch_idleness();
    }
  }

  // Time limits.

  /// Sets the timer for the next handshake or shutdown that is due.
  void await_limits() {
    const auto next = std::min({handshakes_.next(), farewells_.next(), idle_http_.next()});
    if (next == limit_timer_.expiry()) {
      return;  // the timer is set already
    }
    limit_timer_.expires_at(next);
    limit_timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) {
        // An expiry in the past would look like a timer that is set.
        self->limit_timer_.expires_at(Clock::time_point::max());
        self->enforce_limits();
      }
    });
  }

  void enforce_limits() {
    const auto now = Clock::now();
    while (const auto id = handshakes_.take(now)) {
      const auto found = connections_.find(*id);
      if (found != connections_.end() && !found->second->is_open()) {
        close(*id);
        spend(kFlushCost);
      }
    }
    while (const auto id = farewells_.take(now)) {
      close(*id);
      spend(kFlushCost);
    }
    while (const auto id = idle_http_.take(now)) {
      if (const auto client = http_.find(*id); client != http_.end()) {
        client->second->take_activity() ? idle_http_.add(*id) : close(*id);
      }
    }
    await_limits();
    end_turn();
  }

  /// Starts the idle timeout; `accept` cancels it.
  void watch_idleness() {
    if (shared_.options.idle_timeout.count() == 0 || stops_) {
      return;
    }
    idle_timer_.expires_after(shared_.options.idle_timeout);
    idle_timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error && self->connections_.empty()) {
        self->table_.clear();
        self->peers_.forget_keys();
        self->end_turn();
      }
    });
  }

  // Agents and their jobs.

  /// Chooses the protocol by the first byte of a connection (docs/protocol.md).
  std::unique_ptr<ProtocolHandler> open(Connection::Id id, char first,
                                        const ClientFacts& facts) override {
    if (first == secure::kProofHello.front() && !facts.binding.empty() && !facts.admission) {
      return open_proof(id, facts);
    }
    const bool has_tokens = shared_.options.security && shared_.options.security->tokens;
    const bool is_stranger = has_tokens && !facts.admission && !facts.peer->is_trusted;
    const auto may_be = [&](Role role) {
      return !is_stranger && (!facts.admission || facts.admission->role == role);
    };
    if (first == static_cast<char>(wire::Opcode::validate) && shared_.options.serves_store &&
        may_be(Role::store) && leads_) {
      return open_store(id, facts);
    }
    if (first == rounds::kHello.front() && shared_.options.forms_rounds) {
      if (is_stranger) {
        drop(id,
             "this rendezvous requires a token: set ACC_RENDEZVOUS_TOKEN_FILE to a file with "
             "it on every machine");
      } else if (may_be(Role::agent) && leads_) {
        return open_agent(id, facts);
      } else if (may_be(Role::agent)) {
        return std::make_unique<rounds::AgentSession>(
            [this, id](const rounds::AgentMessage& /*message*/) { send_elsewhere(id); });
      }
    }
    // Never without a proof: a plain port on loopback is open to all users of the machine.
    const bool is_administrator =
        facts.admission ? facts.admission->role == Role::administrator : facts.peer->is_trusted;
    if (first == kAdminHello.front() && is_administrator) {
      return std::make_unique<AdminSession>(
          [this](const std::vector<std::string>& words) { return execute(words); });
    }
    const bool is_letter = (first >= 'A' && first <= 'Z') || (first >= 'a' && first <= 'z');
    if (is_letter && board_) {
      return open_http(id, facts);
    }
    return nullptr;
  }

  std::unique_ptr<secure::TlsChannel> encrypt(const Peer& peer) override {
    const auto& security = shared_.options.security;
    const std::size_t most = shared_.options.max_buffered_bytes / 8 / Connection::kHandshakeBytes;
    if (security && peer.handshakes >= std::max<std::size_t>(most, 1)) {
      throw Error(Errc::out_of_memory,
                  fmt::format("{} connections of its address are in the handshake of TLS, with {} "
                              "bytes each: more than an eighth of max_buffered_bytes",
                              peer.handshakes, Connection::kHandshakeBytes));
    }
    return security ? secure::TlsChannel::server(*security->tls) : nullptr;
  }

  std::unique_ptr<ProtocolHandler> open_proof(Connection::Id id, const ClientFacts& facts) {
    const auto& security = shared_.options.security;
    if (!security->tokens) {
      connections_.at(id)->send({&secure::kProofRefusal, 1});
      return nullptr;
    }
    return std::make_unique<ProofSession>(
        security, facts.binding,
        [this, peer = facts.peer](bool was_right) { note_failure(*peer, was_right); });
  }

  /// A client has proved or sent a wrong token. One that was right before is no guess.
  void note_failure(Peer& peer, bool was_right) {
    if (!was_right) {
      Peers::failed(peer, Clock::now());
    }
    if (full_()) {
      logger(Component::rendezvous)
          .warn("a client of {} {}", peer.name,
                was_right ? "has a token that was removed" : "could not prove the token");
    }
  }

  std::unique_ptr<ProtocolHandler> open_store(Connection::Id id, const ClientFacts& facts) {
    if (!facts.peer->is_limited) {
      return std::make_unique<Session>(table_, id, decoder_);
    }
    const auto share = [&](std::size_t limit) {
      return static_cast<std::int64_t>(
          std::min<std::size_t>(share_of(limit), std::numeric_limits<std::int64_t>::max()));
    };
    return std::make_unique<LimitedSession>(
        table_, id, decoder_, facts.peer,
        LimitedSession::Limits{share(shared_.options.max_keys), share(shared_.options.max_bytes)});
  }

  std::unique_ptr<ProtocolHandler> open_agent(Connection::Id id, const ClientFacts& facts) {
    agents_.insert(id);
    const auto job = facts.admission ? std::optional(facts.admission->run_id) : std::nullopt;
    return std::make_unique<rounds::AgentSession>([this, id, job](rounds::AgentMessage message) {
      const auto* enter = std::get_if<rounds::Enter>(&message);
      if (job && enter != nullptr && enter->run_id != *job) {
        drop(id, "the proof of the token is for another job");
        throw Error(Errc::protocol, "an agent that proved the token for another job");
      }
      hear(id, std::move(message));
    });
  }

  // Administration.

  std::string execute(const std::vector<std::string>& words) {
    const std::string& name = words.front();
    if (!leads_ && name != "dump") {
      throw Error(Errc::config,
                  leader_.empty()
                      ? "this daemon stands by, and none leads at the moment"
                      : fmt::format("this daemon stands by: ask {}, which leads", leader_));
    }
    const auto expect = [&](std::size_t least, std::size_t most, const char* usage) {
      if (words.size() < least || words.size() > most) {
        throw Error(Errc::config, fmt::format("usage: {}", usage));
      }
    };
    if (name == "list") {
      expect(1, 1, "list");
      return list_jobs();
    }
    if (name == "dump") {
      expect(1, 1, "dump");
      return dump();
    }
    if (name == "drain" || name == "resume") {
      expect(1, 1, "drain, or resume");
      jobs_.drain(name == "drain");
      logger(Component::rendezvous)
          .warn("an administrator {}", name == "drain" ? "drains: no new jobs" : "resumes");
      return "";
    }
    if (name == "end") {
      expect(2, 3, "end RUN_ID [REASON]");
      return end_job(words[1], words.size() > 2 ? words[2] : "");
    }
    if (name == "evict") {
      expect(3, 4, "evict RUN_ID HOST [REASON]");
      return evict(words[1], words[2], words.size() > 3 ? words[3] : "");
    }
    throw Error(Errc::config, fmt::format("expected list, dump, drain, resume, end RUN_ID [REASON] "
                                          "or evict RUN_ID HOST [REASON], found \"{}\"",
                                          printable(name)));
  }

  std::string list_jobs() {
    std::string text;
    for (const rounds::JobView& job : jobs_.view()) {
      text += fmt::format("{}: {}, {} rounds, {} machines\n", printable(job.run_id), job.phase,
                          job.num_rounds, job.machines.size());
      for (const rounds::MachineView& machine : job.machines) {
        text += fmt::format("  {} {} rank {} workers {} pid {} {}\n", printable(machine.host),
                            printable(machine.address),
                            machine.rank ? std::to_string(*machine.rank) : "-",
                            machine.local_world_size, machine.pid, machine.state);
      }
    }
    return text.empty() ? "no jobs\n" : text;
  }

  /// Returns the whole state but the values of keys.
  std::string dump() {
    std::string text = fmt::format(
        "connections {}\nkeys {}\nkey bytes {}\njob bytes {}\nwatched bytes {}\nbuffered bytes {}\n"
        "draining {}\n",
        connections_.size(), num_keys(), table_.bytes(), jobs_.bytes(),
        board_ ? board_->bytes() : 0, shared_.buffered, jobs_.is_draining());
    peers_.each([&](const Peer& peer) {
      text += fmt::format("peer {}: {} connections, {} buffered bytes, {} keys, {} wrong proofs\n",
                          peer.name, peer.connections, peer.buffered, peer.keys, peer.failures);
    });
    return text + list_jobs();
  }

  /// Returns the machines of a job. Throws Error(not_found).
  std::vector<rounds::MachineView> machines_of(const std::string& run_id) {
    std::vector<rounds::MachineView> machines;
    bool is_known = false;
    for (rounds::JobView& job : jobs_.view()) {
      if (job.run_id == run_id) {
        is_known = true;
        std::ranges::move(job.machines, std::back_inserter(machines));
      }
    }
    if (!is_known) {
      throw Error(Errc::not_found, fmt::format("no job has the run id \"{}\"", printable(run_id)));
    }
    return machines;
  }

  /// Ends a job as if each of its machines had asked for it.
  std::string end_job(const std::string& run_id, const std::string& reason) {
    const auto machines = machines_of(run_id);
    const std::string why = because("ended by an administrator", reason);
    logger(Component::rendezvous).warn("job '{}' is {}", printable(run_id), printable(why));
    for (const rounds::MachineView& machine : machines) {
      rounds::Outbox out;
      try {
        jobs_.receive(machine.agent,
                      rounds::End{AttemptEnd{.exit_status = 1,
                                             .restarts = false,
                                             .cause = AttemptEnd::Cause::other,
                                             .reason = why}},
                      now(), out);
      } catch (const Error&) {
        continue;  // the end of another machine has removed it
      }
      deliver(out);
    }
    return fmt::format("{} machines are told\n", machines.size());
  }

  /// Refuses the machines of a host: their launchers end with the reason.
  std::string evict(const std::string& run_id, const std::string& host, const std::string& reason) {
    const std::string why = because("evicted by an administrator", reason);
    std::size_t count = 0;
    for (const rounds::MachineView& machine : machines_of(run_id)) {
      if (machine.host != host && machine.address != host) {
        continue;
      }
      ++count;
      if (connections_.contains(machine.agent)) {
        drop(machine.agent, why);
        connections_.at(machine.agent)->finish(Connection::ShutdownMode::patient);
      }
      rounds::Outbox out;
      jobs_.lose(machine.agent, why, now(), out);
      deliver(out);
    }
    if (count == 0) {
      throw Error(Errc::not_found, fmt::format("no machine of the job \"{}\" has the host name or "
                                               "address \"{}\"",
                                               printable(run_id), printable(host)));
    }
    logger(Component::rendezvous)
        .warn("{} of job '{}' is {}", printable(host), printable(run_id), printable(why));
    return fmt::format("{} machines are evicted\n", count);
  }

  static std::string because(const std::string& what, const std::string& reason) {
    constexpr std::size_t kMaxReason = 1024;
    return reason.empty() ? what : what + ": " + reason.substr(0, kMaxReason);
  }

  /// Tells an agent, in a last message, why it is refused.
  void drop(Connection::Id id, const std::string& reason) {
    std::string frame;
    rounds::encode(rounds::Dropped{rounds::Dropped::Why::config, reason}, frame);
    connections_.at(id)->send(frame);
  }

  // Those who watch.

  /// Lets new jobs_ tell the board what happens.
  void watch_jobs() {
    if (board_) {
      jobs_.tell_to([this](std::uint64_t job, const news::News& news) {
        board_->tell(job, news, std::chrono::system_clock::now(), is_recovering_);
      });
    }
  }

  std::unique_ptr<ProtocolHandler> open_http(Connection::Id id, const ClientFacts& facts) {
    auto session = std::make_unique<HttpSession>([this, id, facts](const watch::Request& request) {
      return may_ask(request, facts)
                 ? ask(id, request)
                 : watch::refusal(401,
                                  "this rendezvous requires a token: use https:// and the "
                                  "header Authorization: Bearer TOKEN, or the token as the "
                                  "password of a login");
    });
    http_[id] = session.get();
    idle_http_.add(id);
    await_limits();
    return session;
  }

  /// True if the client may read: the server has no token, the client has proved one, the request
  /// has it, in a TLS channel, or it asks only for the state of the server.
  bool may_ask(const watch::Request& request, const ClientFacts& facts) {
    const auto& security = shared_.options.security;
    const bool is_reader = facts.admission && (facts.admission->role == Role::reader ||
                                               facts.admission->role == Role::administrator);
    if (!security || !security->tokens || facts.peer->is_trusted || is_reader ||
        watch::is_probe(request)) {
      return true;
    }
    const std::string sent = token_of(request.authorization);
    if (facts.binding.empty() || sent.empty()) {
      return false;
    }
    const Tokens tokens = security->tokens->now();
    const bool is_right = tokens.contains(sent);
    if (!is_right) {
      note_failure(*facts.peer, tokens.was_right(sent));
    }
    return is_right;
  }

  watch::Answer ask(Connection::Id id, const watch::Request& request) {
    const bool is_full = http_.size() > kMaxHttpClients;
    if (is_full && !watch::is_probe(request)) {
      watch::Answer answer = watch::refusal(503, "too many HTTP connections");
      answer.is_last = true;
      return answer;
    }
    watch::Answer answer = watch::answer(request, *board_,
                                         {.num_connections = connections_.size(),
                                          .num_keys = table_.values().size(),
                                          .num_watchers = streams_.size(),
                                          .is_stopping = stops_ || retired_ != nullptr,
                                          .leads = leads_},
                                         std::chrono::system_clock::now());
    answer.is_last = is_full;
    if (answer.stream && request.method != "HEAD") {
      if (streams_.size() >= kMaxStreams) {
        return watch::refusal(503, "too many watchers");
      }
      streams_.emplace(id, *answer.stream);
      if (streams_.size() == 1) {
        seen_changes_.clear();
        await_stream();
      }
    }
    return answer;
  }

  void on_event(const Board::Event& event) {
    // Lines of the log begin with the time; a daemon that runs for days needs the date, too.
    // Agents choose the texts, which must not look like further lines.
    const Logger log = logger(Component::rendezvous);
    const std::string line =
        fmt::format("job '{}': {}", printable(event.id), printable(event.text));
    if (shared_.options.logs_jobs) {
      log.info("{:%Y-%m-%d} {}", fmt::gmtime(event.time), line);
    } else {
      log.debug("{}", line);
    }
    send_to_streams(event.job, [&] { return watch::stream_entry(event); });
  }

  /// Sends an entry to the streams of a job and to those of all jobs. `make` is called only if
  /// there is one.
  template <typename Make>
  void send_to_streams(Board::JobNumber job, const Make& make) {
    std::string entry;
    for (const auto& [id, stream] : streams_) {
      if (!stream.job || *stream.job == job) {
        entry = entry.empty() ? make() : std::move(entry);
        connections_.at(id)->send(entry);
      }
    }
  }

  void await_stream() {
    stream_timer_.expires_after(kStreamInterval);
    stream_timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error && !self->stops_ && !self->streams_.empty()) {
        self->feed_streams();
        self->await_stream();
        self->end_turn();
      }
    });
  }

  /// Sends the jobs that have changed, ends the streams of jobs that are over, and closes those
  /// that are not read.
  void feed_streams() {
    ++num_stream_intervals_;
    std::vector<Board::JobNumber> numbers;
    for (const Board::Job* job : board_->jobs()) {
      numbers.push_back(job->number);
    }
    for (const Board::JobNumber number : numbers) {
      const Board::Job* const job = board_->find(number);
      if (job != nullptr &&
          std::exchange(seen_changes_[number], job->num_changes) != job->num_changes) {
        send_to_streams(number, [&] { return watch::stream_entry(*job); });
        spend(kFlushCost + (job->ranks.size() + job->machines.size()) / 4);
      }
    }
    const auto now = std::chrono::system_clock::now();
    std::vector<Connection::Id> ended;
    std::vector<Connection::Id> unread;
    for (const auto& [id, stream] : streams_) {
      Connection& connection = *connections_.at(id);
      const Board::Job* const job = stream.job ? board_->find(*stream.job) : nullptr;
      if (stream.job &&
          (job == nullptr || (job->is_over() && now >= *job->ended_at + kStreamEnd))) {
        ended.push_back(id);
      } else if (connection.num_buffered() > kMaxUnreadStream) {
        unread.push_back(id);
      } else if (num_stream_intervals_ % kIntervalsPerComment == 0) {
        connection.send(":\n\n");
      }
    }
    for (const Connection::Id id : ended) {
      streams_.erase(id);
      connections_.at(id)->finish(Connection::ShutdownMode::patient);
    }
    for (const Connection::Id id : unread) {
      close(id);
    }
  }

  /// Sends an agent to another server.
  void send_elsewhere(Connection::Id id) {
    std::string frame;
    rounds::encode(rounds::Elsewhere{leader_.substr(0, rounds::kMaxNameBytes)}, frame);
    connections_.at(id)->send(frame);
    connections_.at(id)->finish(Connection::ShutdownMode::patient);
  }

  /// Passes an agent's message to its job and delivers the resulting messages. An exception ends
  /// the agent's connection; if there is no memory for its job, it is told so and may try again.
  void hear(Connection::Id id, rounds::AgentMessage message) {
    rounds::Outbox out;
    share_memory();
    std::vector<RankStatus> ranks;
    std::string report;
    if (auto* const status = std::get_if<rounds::Status>(&message)) {
      ranks = std::move(status->ranks);
    } else if (auto* const failure = std::get_if<rounds::FailureReport>(&message)) {
      report = std::move(failure->json);
    }
    try {
      jobs_.receive(id, std::move(message), now(), out);
    } catch (const Error& error) {
      if (error.code() == Errc::config) {
        drop(id, error.what());
      } else if (error.code() == Errc::out_of_memory) {
        std::string frame;
        rounds::encode(rounds::Dropped{rounds::Dropped::Why::lost, error.what()}, frame);
        connections_.at(id)->send(frame);
      }
      throw;
    }
    const auto job = jobs_.job_of(id);
    if (job) {
      connections_.at(id)->hurry();
    }
    if (job && board_ && !report.empty()) {
      board_->keep_report(*job, std::move(report), std::chrono::system_clock::now());
    } else if (job && board_) {
      board_->update(*job, id, std::move(ranks), std::chrono::system_clock::now());
    }
    deliver(out);
  }

  /// Limits keys, jobs and what is kept of jobs for those who watch, which share
  /// ServerOptions::max_bytes: the last may use a quarter.
  void share_memory() {
    const std::size_t all = shared_.options.max_bytes;
    const auto left = [all](std::size_t used) { return all - std::min(used, all); };
    const std::size_t watched = board_ ? board_->bytes() : 0;
    table_.limit_bytes(left(jobs_.bytes() + watched));
    jobs_.limit_bytes(left(table_.bytes() + watched));
    if (board_) {
      board_->limit_bytes(std::min(all / 4, left(table_.bytes() + jobs_.bytes())));
    }
  }

  /// Sends the messages of a job and sets the timer for the next deadline of the jobs. Messages to
  /// one agent keep their order.
  void deliver(const rounds::Outbox& out) {
    for (const rounds::OutgoingMessage& outgoing : out) {
      const auto found = connections_.find(outgoing.to);
      if (found == connections_.end()) {
        continue;  // closed meanwhile
      }
      found->second->send(*outgoing.frame);
      if (outgoing.is_last) {
        found->second->finish(outgoing.is_lost ? Connection::ShutdownMode::brief
                                               : Connection::ShutdownMode::patient);
      }
    }
    share_memory();
    await_round();
  }

  void await_round() {
    const auto deadline = jobs_.next_deadline();
    const auto next =
        deadline == rounds::Time::max() ? deadline : deadline - shift_;  // on this machine's clock
    if (next == round_timer_.expiry() || stops_) {
      return;
    }
    round_timer_.expires_at(next);
    round_timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) {
        self->round_timer_.expires_at(Clock::time_point::max());
        // Reads all heartbeats that have arrived before it decides which agents are silent. If this
        // process was delayed, they wait in the sockets' receive buffers.
        self->hear_all();
        rounds::Outbox due;
        self->jobs_.pass(self->now(), due);
        self->deliver(due);
        self->end_turn();
      }
    });
  }

  /// Returns a copy of all ids, because closing a connection changes connections_.
  [[nodiscard]] std::vector<Connection::Id> all_connections() const {
    std::vector<Connection::Id> ids;
    for (const auto& [id, connection] : connections_) {
      ids.push_back(id);
    }
    return ids;
  }

  asio::io_context& io_;
  Connection::SharedBuffers shared_;
  KeyTable table_;
  wire::RequestDecoder decoder_;    // lent to the session that is served
  std::deque<Acceptor> acceptors_;  // a deque never moves its elements
  std::uint16_t port_ = 0;
  RateLimiter full_;  // limits the rate of warnings about refused clients
  std::unordered_map<Connection::Id, std::unique_ptr<Connection>> connections_;  // open ones
  std::vector<std::unique_ptr<Connection>> gone_;  // closed in this turn
  std::vector<Connection*> touched_;               // to be flushed in this turn
  std::vector<Connection*> touched_agents_;        // the same, before the others
  std::deque<Connection::Id> backlog_;  // have requests that wait for their connection's turn
  std::size_t spent_ = 0;               // since the agents were served
  std::vector<Connection::Id> held_;    // wait until their changes are in the log
  Connection::Id next_id_ = 0;          // never reused
  Deadlines handshakes_;
  Deadlines farewells_;
  Deadlines idle_http_;
  std::unordered_map<Connection::Id, HttpSession*> http_;      // owned by their connections
  std::unordered_map<Connection::Id, watch::Stream> streams_;  // those of http_ that are streams
  Peers peers_;
  std::unordered_set<Connection::Id> agents_;  // connections that speak the agent protocol
  rounds::Jobs jobs_;
  std::function<void()> retired_;  // `done` of a pending `retire`
  bool stops_ = false;
  bool leads_;          // false: stands by
  std::string leader_;  // while it stands by: the server that leads, if there is one
  std::optional<EtcdLeadership> leadership_;
  std::optional<Journal> journal_;   // none: the server does not recover
  Clock::duration shift_{};          // time of the jobs less this machine's clock
  asio::steady_timer limit_timer_;   // handshakes_ and farewells_
  asio::steady_timer accept_timer_;  // kAcceptPause
  asio::steady_timer idle_timer_;    // ServerOptions::idle_timeout
  asio::steady_timer round_timer_;   // deadlines of jobs_
  asio::steady_timer stream_timer_;  // kStreamInterval, while there are streams
  FreedMemory freed_memory_;
  std::shared_ptr<Board> board_;  // null: no HTTP
  std::shared_ptr<Board::Listener> listener_ =
      std::make_shared<Board::Listener>([this](const Board::Event& event) { on_event(event); });
  std::unordered_map<Board::JobNumber, std::uint64_t> seen_changes_;  // by streams_
  int num_stream_intervals_ = 0;
  bool is_recovering_ = false;
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
}

std::uint16_t Server::port() const noexcept {
  return impl_->port();
}

std::size_t Server::num_connections() const noexcept {
  return impl_->num_connections();
}

std::size_t Server::num_jobs() const noexcept {
  return impl_->num_jobs();
}

bool Server::is_refusing() const noexcept {
  return impl_->is_refusing();
}

std::size_t Server::num_keys() const noexcept {
  return impl_->num_keys();
}

void Server::reconfigure(const ServerOptions& options) {
  impl_->reconfigure(options);
}

bool Server::leads() const noexcept {
  return impl_->leads();
}

void Server::renew_store() {
  impl_->renew_store();
}

void Server::retire(std::function<void()> done) {
  impl_->retire(std::move(done));
}

void Server::stop() {
  impl_->stop();
}

}  // namespace acc::rendezvous
