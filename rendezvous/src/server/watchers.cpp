// SPDX-License-Identifier: Apache-2.0
#include "server/watchers.hpp"

#include "acc/base/log.hpp"
#include "acc/base/text.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

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

Watchers::Watchers(Clients& clients, const ServerOptions& options,
                   std::function<watch::ServerFacts()> facts)
    : clients_(clients),
      options_(options),
      board_(options.board),
      server_facts_(std::move(facts)),
      listener_(std::make_shared<Board::Listener>(
          [this](const Board::Event& event) { on_event(event); })),
      idle_(clients.turns(), options.handshake_timeout, [this](Id id) { close_if_idle(id); }),
      stream_timer_(clients.turns(), [this] { feed_streams(); }) {
  if (board_) {
    board_->listen(listener_);
  }
}

std::unique_ptr<ProtocolHandler> Watchers::open(Id id, const ClientFacts& facts) {
  if (!board_) {
    return nullptr;
  }
  auto session = std::make_unique<HttpSession>([this, id, facts](const watch::Request& request) {
    return may_ask(request, facts)
               ? answer(id, request)
               : watch::refusal(401,
                                "this rendezvous requires a token: use https:// and the "
                                "header Authorization: Bearer TOKEN, or the token as the "
                                "password of a login");
  });
  sessions_[id] = session.get();
  idle_.add(id);
  return session;
}

void Watchers::closed(Id id) {
  sessions_.erase(id);
  streams_.erase(id);
}

void Watchers::close_if_idle(Id id) {
  if (const auto found = sessions_.find(id); found != sessions_.end()) {
    found->second->take_activity() ? idle_.add(id) : clients_.close(id);
  }
}

/// True if the client may read: the server has no token, the client has proved one, the request has
/// it, in a TLS channel, or it asks only for the state of the server.
bool Watchers::may_ask(const watch::Request& request, const ClientFacts& facts) {
  const auto& security = options_.security;
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
    clients_.note_failure(*facts.peer, tokens.was_right(sent));
  }
  return is_right;
}

watch::Answer Watchers::answer(Id id, const watch::Request& request) {
  const bool is_full = sessions_.size() > kMaxHttpClients;
  if (is_full && !watch::is_probe(request)) {
    watch::Answer answer = watch::refusal(503, "too many HTTP connections");
    answer.is_last = true;
    return answer;
  }
  watch::ServerFacts facts = server_facts_();
  facts.num_connections = clients_.size();
  facts.num_watchers = streams_.size();
  watch::Answer answer = watch::answer(request, *board_, facts, std::chrono::system_clock::now());
  answer.is_last = is_full;
  if (answer.stream && request.method != "HEAD") {
    if (streams_.size() >= kMaxStreams) {
      return watch::refusal(503, "too many watchers");
    }
    streams_.emplace(id, *answer.stream);
    if (streams_.size() == 1) {
      sent_changes_.clear();
      stream_timer_.after(kStreamInterval);
    }
  }
  return answer;
}

void Watchers::on_event(const Board::Event& event) {
  // Lines of the log begin with the time; a daemon that runs for days needs the date, too.
  // Agents choose the texts, which must not look like further lines.
  const Logger log = logger(Component::rendezvous);
  const std::string line = fmt::format("job '{}': {}", printable(event.id), printable(event.text));
  if (options_.logs_jobs) {
    log.info("{:%Y-%m-%d} {}", fmt::gmtime(event.time), line);
  } else {
    log.debug("{}", line);
  }
  send_to_streams(event.job, [&] { return watch::stream_entry(event); });
}

/// Sends an entry to the streams of a job and to those of all jobs. `make` is called only if there
/// is one.
template <typename Make>
void Watchers::send_to_streams(Board::JobNumber job, const Make& make) {
  std::string entry;
  for (const auto& [id, stream] : streams_) {
    if (!stream.job || *stream.job == job) {
      entry = entry.empty() ? make() : std::move(entry);
      clients_.at(id).send(entry);
    }
  }
}

void Watchers::feed_streams() {
  if (clients_.is_stopping() || streams_.empty()) {
    return;
  }
  ++num_intervals_;
  send_changed_jobs();
  end_streams();
  stream_timer_.after(kStreamInterval);
}

void Watchers::send_changed_jobs() {
  std::vector<Board::JobNumber> numbers;
  for (const Board::Job* job : board_->jobs()) {
    numbers.push_back(job->number);
  }
  std::erase_if(sent_changes_,
                [&](const auto& sent) { return board_->find(sent.first) == nullptr; });
  for (const Board::JobNumber number : numbers) {
    const Board::Job* const job = board_->find(number);
    if (job != nullptr &&
        std::exchange(sent_changes_[number], job->num_changes) != job->num_changes) {
      send_to_streams(number, [&] { return watch::stream_entry(*job); });
      clients_.turns().spend(Turns::kFlushCost + (job->ranks.size() + job->machines.size()) / 4);
    }
  }
}

/// Ends the streams of jobs that are over, and closes those that are not read. Sends comments to
/// the others.
void Watchers::end_streams() {
  const auto now = std::chrono::system_clock::now();
  std::vector<Id> ended;
  std::vector<Id> unread;
  for (const auto& [id, stream] : streams_) {
    Connection& connection = clients_.at(id);
    const Board::Job* const job = stream.job ? board_->find(*stream.job) : nullptr;
    if (stream.job && (job == nullptr || (job->is_over() && now >= *job->ended_at + kStreamEnd))) {
      ended.push_back(id);
    } else if (connection.num_buffered() > kMaxUnreadStream) {
      unread.push_back(id);
    } else if (num_intervals_ % kIntervalsPerComment == 0) {
      connection.send(":\n\n");
    }
  }
  for (const Id id : ended) {
    streams_.erase(id);
    clients_.at(id).finish(Connection::ShutdownMode::patient);
  }
  for (const Id id : unread) {
    clients_.close(id);
  }
}

}  // namespace acc::rendezvous
