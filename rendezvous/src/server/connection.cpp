// SPDX-License-Identifier: Apache-2.0
#include "server/connection.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "net/socket_name.hpp"
#include "server/turns.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace acc::rendezvous {
namespace {

// Largest capacity of the shared reply buffer that is kept for the next request.
constexpr std::size_t kKeptReplies = std::size_t{1} << 20;

// Bytes passed to `send` are sent at the end of the turn, in one system call, or earlier when there
// are more than this.
constexpr std::size_t kSentAtOnce = std::size_t{64} * 1024;

std::string peer_name(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  auto* const address = reinterpret_cast<sockaddr*>(&peer);
  const bool is_known = getpeername(fd, address, &size) == 0 && peer.ss_family != AF_UNIX;
  return is_known ? socket_name(address, size) : "a client";
}

}  // namespace

Connection::Connection(UniqueFd socket, Id id, std::shared_ptr<Peer> peer, SharedBuffers& shared,
                       Owner& owner)
    : socket_(std::move(socket)), id_(id), shared_(shared), owner_(owner), facts_{std::move(peer)} {
  shared_.turns.ready().add(socket_.get(), interest_, *this);
  ++facts_.peer->connections;
  ++facts_.peer->pending;
}

void Connection::ready(std::uint32_t events) {
  guarded([&] { advance(events); });
}

void Connection::resume() {
  if (phase_ == Phase::unfinished) {
    phase_ = Phase::reading;
    guarded([&] { serve(rest_); });
  }
}

/// Calls `serve` unless the connection was closed earlier in this turn. Errors end the connection.
template <typename Serve>
void Connection::guarded(const Serve& serve) {
  if (!socket_) {
    return;
  }
  try {
    serve();
  } catch (const Error& error) {
    refuse(error.what(), error.code() == Errc::out_of_memory);
  } catch (const std::exception& error) {
    refuse(error.what(), true);
  }
}

/// Handles one epoll event. Input has priority: after EPOLLHUP there may still be bytes to read,
/// and recv then reports the end.
void Connection::advance(std::uint32_t events) {
  if ((events & EPOLLIN) != 0) {
    receive();
  } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
    if (phase_ != Phase::unfinished) {  // requests that were received before the end are served
      close();
    }
  } else if (phase_ == Phase::paused && num_unsent() <= max_unread()) {
    serve(rest_);
  } else {
    flush();
  }
}

void Connection::receive() {
  const ssize_t count = recv(socket_.get(), shared_.received.data(), shared_.received.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count < 0 || (count == 0 && phase_ == Phase::departing)) {
    return close();
  }
  if (is_finishing()) {
    return;  // reads and discards, so that the end of the stream becomes visible
  }
  if (count == 0) {
    finish(ShutdownMode::brief);
    return;
  }
  std::string_view bytes(shared_.received.data(), static_cast<std::size_t>(count));
  shared_.turns.count(1 + bytes.size() / kBytesPerUnit);
  std::string hello;
  if (!handler_ && !tls_ && !rest_.empty()) {  // the beginning of TLS
    hello = std::exchange(rest_, {});
    bytes = hello.append(bytes);
  }
  const bool is_tls = bytes.front() == secure::kTlsHandshake;
  if (!handler_ && !tls_ && owner_.is_shut_out(peer())) {
    unsent_ += is_tls ? secure::kTlsShutOut : std::string_view();
    return refuse("too many wrong proofs of its address (max_failed_proofs)", false);
  }
  if (!handler_ && !tls_ && is_tls) {
    if (!secure::has_client_hello(bytes)) {
      rest_ = bytes;  // a channel costs much more than these bytes
      return count_buffered();
    }
    tls_ = owner_.encrypt(peer());
    if (!tls_) {
      unsent_ += secure::kTlsRefusal;
      return refuse("a TLS client: this server has neither a token nor a certificate", false);
    }
    ++peer().handshakes;
  }
  if (tls_) {
    decrypt(bytes);
  } else {
    take(bytes);
  }
}

void Connection::decrypt(std::string_view bytes) {
  shared_.decrypted.clear();
  const std::size_t had = encrypted_.size();
  if (!tls_->is_established()) {
    shared_.turns.count(kHandshakeCost);
  }
  tls_->receive(bytes, shared_.decrypted, encrypted_);
  if (encrypted_.size() > had) {
    flush_soon();  // a part of the handshake
  }
  if (tls_->is_established() && facts_.binding.empty()) {
    facts_.binding = tls_->binding();
  }
  if (!shared_.decrypted.empty()) {
    take(shared_.decrypted);
  } else if (is_pending_) {
    count_buffered();
  }
  if (tls_->is_finished()) {
    finish(ShutdownMode::brief);
  }
}

/// Selects the protocol handler.
void Connection::choose(char first) {
  handler_ = owner_.open(id_, first, facts_);
  if (!handler_) {
    throw Error(Errc::protocol,
                "the client may not use this protocol without a proof of the token, or the "
                "protocol is unknown");
  }
}

void Connection::take(std::string_view bytes) {
  if (!handler_) {
    choose(bytes.front());
  }
  if (rest_.empty()) {
    return serve(bytes);  // the usual case: complete requests, served without a copy
  }
  rest_.append(bytes);
  serve(rest_);
}

/// Serves all complete requests in `bytes`, which lie in the shared receive buffer or in rest_, and
/// sends the replies. Borrows the shared reply buffer unless older replies are still unsent.
void Connection::serve(std::string_view bytes) {
  is_lent_ = unsent_.empty();
  if (is_lent_) {
    unsent_.swap(shared_.replies);
  }
  step_through(bytes);
  keep(bytes);
  flush();
}

/// Returns the empty reply buffer to SharedBuffers, or frees it if it is not the shared one or has
/// grown too large to keep.
void Connection::give_back() {
  if (is_lent_ && unsent_.capacity() <= kKeptReplies) {
    unsent_.swap(shared_.replies);
  } else {
    std::string().swap(unsent_);
  }
  is_lent_ = false;
}

void Connection::step_through(std::string_view& bytes) {
  is_serving_ = true;
  std::size_t cost = 0;
  for (bool has_more = true; has_more;) {
    if (!is_finishing()) {
      phase_ = num_unsent() > max_unread() ? Phase::paused : Phase::reading;
    }
    const bool has_work = !bytes.empty() || handler_->is_replying();
    if (cost >= kTurnCost && has_work && phase_ == Phase::reading) {
      phase_ = Phase::unfinished;
      shared_.turns.resume_later(id_);
      break;
    }
    if (const secure::Admission* admission = handler_->admission(); admission != nullptr) {
      if (bytes.empty()) {
        break;
      }
      facts_.admission = *admission;
      owner_.admitted(peer());
      choose(bytes.front());
    }
    const std::size_t before = unsent_.size();
    const std::size_t left = bytes.size();
    const std::uint64_t recorded = shared_.changes.recorded;
    has_more = phase_ == Phase::reading && handler_->step(bytes, unsent_);
    if (shared_.changes.recorded > recorded) {
      show(shared_.changes.recorded);  // any later reply means that the client's changes were made
    } else if (unsent_.size() > before) {
      show(handler_->shown_change());
    }
    cost += (has_more ? handler_->cost() : 0) +
            (left - bytes.size() + unsent_.size() - before) / kBytesPerUnit;
  }
  is_serving_ = false;
  shared_.turns.count(cost);
  if (is_pending_ && handler_->is_open()) {
    no_longer_pending();
  }
  if (handler_->is_finished()) {
    finish(ShutdownMode::patient);
  }
}

void Connection::no_longer_pending() {
  is_pending_ = false;
  --peer().pending;
  peer().handshakes -= tls_ ? 1 : 0;
}

std::size_t Connection::max_unread() const noexcept {
  return handler_ && handler_->is_replying() ? kSentAtOnce : shared_.options.max_unread_bytes;
}

/// Makes the unsent bytes wait for this change, or for the last one recorded so far.
void Connection::show(std::uint64_t change) {
  shown_ = std::max(shown_, std::min(change, shared_.changes.recorded));
}

/// Ends the connection after a protocol violation or when a memory limit is exceeded (`is_limit`).
/// Replies to earlier requests are still sent. `patient` if the client has shown a valid handshake:
/// a stranger gets no time.
void Connection::refuse(const std::string& why, bool is_limit) {
  log_end(why, is_limit);
  shared_.turns.count(kTurnCost / 8);  // an exception, and what led to it
  is_serving_ = false;
  std::string().swap(rest_);
  finish(is_open() || num_unsent() > 0 ? ShutdownMode::patient : ShutdownMode::brief);
  flush();
}

/// Logs why the connection is closed: exceeded limits as warnings for the operator, at a limited
/// rate, violations by a client only at debug level.
void Connection::log_end(const std::string& why, bool is_limit) {
  const Logger log = logger(Component::rendezvous);
  if (!is_limit && log.should_log(LogLevel::debug)) {
    log.debug("closing {}: {}", peer_name(socket_.get()), why);
  } else if (is_limit && shared_.refusals()) {
    log.warn("closing {}: {}", peer_name(socket_.get()), why);
  }
}

/// Keeps the bytes after the last served request. `rest` is the end of rest_, or lies in the shared
/// receive buffer and must be copied.
void Connection::keep(std::string_view rest) {
  if (is_finishing() || rest.empty()) {
    if (!rest_.empty()) {
      std::string().swap(rest_);
    }
  } else if (rest_.empty()) {
    rest_ = rest;
  } else {
    rest_.erase(0, rest_.size() - rest.size());
  }
}

void Connection::flush_soon() {
  if (flush_ == Flush::none) {
    flush_ = Flush::due;
    shared_.turns.flush_later(*this);
  }
}

void Connection::send(std::string_view bytes) {
  unsent_.append(bytes);
  show(shared_.changes.recorded);
  flush_soon();
  // Not while replies are collected: the buffer would be changed under step_through.
  if (!is_serving_ && num_unsent() > kSentAtOnce && shared_.changes.may_show(shown_)) {
    write();
  }
}

void Connection::finish(ShutdownMode mode) {
  if (is_finishing()) {
    return;
  }
  phase_ = Phase::finishing;
  shutdown_mode_ = mode;
  owner_.finishing(id_);
  flush_soon();
  if (flush_ == Flush::held) {
    watch();  // input stays in the socket until it may send
  }
}

void Connection::flush() {
  if (!socket_) {
    flush_ = Flush::none;
    return;
  }
  if (phase_ != Phase::broken && num_unsent() > 0 && !shared_.changes.may_show(shown_)) {
    return hold();
  }
  flush_ = Flush::none;
  write();
  is_lent_ = false;  // unsent bytes keep the buffer: the next client starts with an empty one
  count_buffered();
  if (phase_ == Phase::broken) {
    return close();
  }
  if (phase_ == Phase::finishing) {
    depart();
  }
  watch();
}

/// Keeps the unsent bytes until the changes that they show are in the log.
void Connection::hold() {
  is_lent_ = false;  // the bytes keep the buffer
  if (std::exchange(flush_, Flush::held) != Flush::held) {
    shared_.turns.hold(id_);
  }
  count_buffered();
  watch();
}

/// Sends as much as the socket accepts and keeps the rest in unsent_.
void Connection::write() {
  if (phase_ == Phase::broken || !socket_) {
    return;
  }
  if (tls_) {
    return write_encrypted();
  }
  if (unsent_.empty()) {
    return give_back();
  }
  write_from(unsent_, num_sent_);
  if (unsent_.empty()) {
    give_back();
  }
}

/// Sends bytes behind the first `num_sent` ones, which are sent already. Clears `bytes` when all
/// are sent.
void Connection::write_from(std::string& bytes, std::size_t& num_sent) {
  const ssize_t count = ::send(socket_.get(), bytes.data() + num_sent, bytes.size() - num_sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) {
    phase_ = errno == EAGAIN || errno == EINTR ? phase_ : Phase::broken;
    return;
  }
  num_sent += static_cast<std::size_t>(count);
  if (num_sent == bytes.size()) {
    bytes.clear();
    num_sent = 0;
  } else if (num_sent > bytes.size() / 2) {
    // Moves bytes only when more than half is sent: linear time in total.
    bytes.erase(0, num_sent);
    num_sent = 0;
  }
}

/// The same for a TLS connection. All of unsent_ is encrypted at once: num_unsent counts it still.
void Connection::write_encrypted() {
  if (!unsent_.empty() && tls_->is_established()) {
    tls_->send(unsent_, encrypted_);
    unsent_.clear();
  }
  if (unsent_.empty()) {
    give_back();
  }
  if (is_finishing() && unsent_.empty()) {
    tls_->finish(encrypted_);
  }
  if (!encrypted_.empty()) {
    write_from(encrypted_, num_encrypted_sent_);
  }
}

/// Updates this connection's share of SharedBuffers::buffered. Only growth can exceed the limit.
void Connection::count_buffered() {
  std::size_t now = num_unsent();
  if (!rest_.empty()) {
    now += rest_.size() + (handler_ ? handler_->num_kept() : 0);
  }
  if (tls_ && is_pending_) {
    now += kHandshakeBytes;
  }
  const bool grew = now > counted_;
  peer().buffered += now - counted_;
  shared_.buffered += now - std::exchange(counted_, now);
  if (grew && shared_.buffered > shared_.options.max_buffered_bytes) {
    owner_.overfull();
  }
}

void Connection::give_up() {
  log_end(fmt::format("incomplete requests and unread replies of all clients exceed {} bytes "
                      "(max_buffered_bytes); this client has the largest share, {} bytes",
                      shared_.options.max_buffered_bytes, counted_),
          true);
  phase_ = Phase::broken;
  close();
}

/// Continues `finish` when all replies are sent: closes (brief), or sends FIN and waits for the
/// client's (patient).
void Connection::depart() {
  if (num_unsent() == 0 && shutdown_mode_ == ShutdownMode::brief) {
    return close();
  }
  if (num_unsent() == 0) {
    phase_ = Phase::departing;
    shutdown(socket_.get(), SHUT_WR);
  }
}

/// Registers the events that the connection waits for now. EPOLLERR and EPOLLHUP are always
/// reported.
void Connection::watch() {
  if (!socket_) {
    return;
  }
  std::uint32_t wanted = 0;
  if (phase_ == Phase::reading || phase_ == Phase::departing) {
    wanted |= EPOLLIN;
  }
  if (flush_ != Flush::held && (phase_ == Phase::paused || num_unsent() > 0)) {
    wanted |= EPOLLOUT;
  }
  if (wanted != interest_) {
    shared_.turns.ready().change(socket_.get(), wanted, *this, part_);
    interest_ = wanted;
  }
}

void Connection::make_urgent() {
  if (socket_ && !is_urgent()) {
    shared_.turns.ready().remove(socket_.get(), part_);
    part_ = ReadySet::Part::urgent;
    shared_.turns.ready().add(socket_.get(), interest_, *this, part_);
  }
}

void Connection::close() {
  if (!socket_) {
    return;
  }
  shared_.turns.ready().remove(socket_.get(), part_);
  socket_.reset();
  if (is_pending_) {
    no_longer_pending();
  }
  peer().buffered -= counted_;
  --peer().connections;
  shared_.buffered -= std::exchange(counted_, 0);
  owner_.closed(id_);
}

}  // namespace acc::rendezvous
