// SPDX-License-Identifier: Apache-2.0
#include "store/store_connection.hpp"

#include "acc/rendezvous/unix_address.hpp"
#include "net/backoff.hpp"
#include "net/connect_socket.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace acc::rendezvous {
namespace {

using wire::Opcode;

std::string server_name(const std::string& host, std::uint16_t port) {
  if (is_unix(host)) {
    return host;
  }
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

void expect(char byte, char expected) {
  if (byte != expected) {
    throw Error(Errc::protocol,
                fmt::format("a wait was answered with {}, expected {}", int{byte}, int{expected}));
  }
}

}  // namespace

char ReplyReader::byte() {
  char byte = 0;
  stream_.read(&byte, 1, deadline_);
  return byte;
}

std::uint32_t ReplyReader::u32() {
  std::array<char, 4> bytes{};
  stream_.read(bytes.data(), bytes.size(), deadline_);
  return wire::get_u32(bytes.data());
}

std::int64_t ReplyReader::i64() {
  std::array<char, 8> bytes{};
  stream_.read(bytes.data(), bytes.size(), deadline_);
  return wire::get_i64(bytes.data());
}

std::string ReplyReader::bytes() {
  const auto length = static_cast<std::uint64_t>(i64());
  if (length > wire::kMaxFrameBytes) {
    throw Error(Errc::protocol, fmt::format("the server announced a value of {} bytes", length));
  }
  // Allocates as bytes arrive: a wrong length alone costs at most kMaxValueBytes of memory.
  std::string bytes;
  while (bytes.size() < length) {
    const std::size_t begin = bytes.size();
    bytes.resize(std::min<std::size_t>(length, begin + std::max(begin, wire::kMaxValueBytes)));
    stream_.read(bytes.data() + begin, bytes.size() - begin, deadline_);
  }
  return bytes;
}

StoreConnection::StoreConnection(std::string host, std::uint16_t port, Milliseconds connect_timeout,
                                 TcpStoreOptions options)
    : host_(std::move(host)),
      port_(port),
      where_(server_name(host_, port)),
      connect_timeout_(connect_timeout),
      options_(std::move(options)),
      poll_(options_.stop),
      stream_(poll_) {
  connect();
}

/// Connects with repeated attempts. A server that is not up yet or has a full backlog is normal
/// when all ranks start at once; an error of the protocol or of an argument will not go away.
void StoreConnection::connect() {
  const auto deadline = after(connect_timeout_);
  auto next_attempt = Store::Clock::now();
  Backoff backoff;
  while (true) {
    std::string reason;
    try {
      poll_.wait({}, next_attempt);
      return attempt(deadline);
    } catch (const Error& error) {
      stream_.close();
      if (error.code() == Errc::protocol || error.code() == Errc::invalid_argument ||
          options_.stop.stop_requested()) {
        throw with_server(error);
      }
      reason = error.what();
    }
    next_attempt = after(backoff.next());
    if (next_attempt >= deadline) {
      throw Error(Errc::timeout,
                  fmt::format("timeout: cannot reach the store at {} within {} ms: {}", where_,
                              connect_timeout_.count(), reason));
    }
  }
}

void StoreConnection::attempt(SocketStream::TimePoint deadline) {
  // The look-up may take until the deadline: repeating it would not give an answer sooner.
  const auto addresses = resolve(host_, port_, deadline, poll_);
  const auto limit = std::min(deadline, after(options_.attempt_timeout));
  stream_.open(connect_socket(addresses, limit, poll_));
  handshake(limit);
}

/// Handshake of the TCPStore protocol: VALIDATE with the magic number, which has no reply, then
/// PING with a nonce, which the server echoes. PyTorch's client uses its process id as the nonce,
/// too.
void StoreConnection::handshake(SocketStream::TimePoint deadline) {
  const auto nonce = static_cast<std::uint32_t>(getpid());
  std::string hello;
  wire::encode({.opcode = Opcode::validate, .number = wire::kMagic}, hello);
  wire::encode({.opcode = Opcode::ping, .number = nonce}, hello);
  stream_.write(hello, deadline);
  const std::uint32_t echo = ReplyReader(stream_, deadline).u32();
  if (echo != nonce) {
    throw Error(Errc::protocol,
                fmt::format("not a TCPStore server: it answered a ping with 0x{:08x}, not 0x{:08x}",
                            echo, nonce));
  }
}

bool StoreConnection::await(const wire::Request& request, Milliseconds timeout) {
  // The server has no timeouts: the client polls for the release byte and cancels at its deadline.
  return call(request, [&](ReplyReader&) {
    if (!stream_.readable(after(timeout))) {
      return cancel();
    }
    expect(ReplyReader(stream_, after(options_.call_timeout)).byte(), wire::kReleased);
    return true;
  });
}

/// Cancels a wait. Returns true if the release crossed CANCEL_WAIT on its way: the server then
/// sends both replies, and the keys exist after all. Both bytes must be read in that case.
bool StoreConnection::cancel() {
  const auto deadline = after(options_.call_timeout);
  std::string frame;
  wire::encode({.opcode = Opcode::cancel_wait}, frame);
  stream_.write(frame, deadline);
  ReplyReader reader(stream_, deadline);
  const char first = reader.byte();
  if (first == wire::kReleased) {
    expect(reader.byte(), wire::kCancelled);
    return true;
  }
  expect(first, wire::kCancelled);
  return false;
}

void StoreConnection::pause(Milliseconds time) {
  // As an exchange without frames, so that a stop request closes the connection as in a call.
  exchange({}, time, [&](ReplyReader&) { poll_.wait({}, after(time)); });
}

std::unique_ptr<StoreConnection> StoreConnection::clone() const {
  owner_.check("the connection to the store at " + where_);
  return std::make_unique<StoreConnection>(host_, port_, connect_timeout_, options_);
}

void StoreConnection::require_open() const {
  owner_.check("the connection to the store at " + where_);
  if (!stream_.is_open()) {
    throw Error(
        Errc::connection,
        fmt::format("the connection to the store at {} was closed by an earlier error", where_));
  }
}

Error StoreConnection::with_server(const Error& error) const {
  return Error(error.code(), fmt::format("store at {}: {}", where_, error.what()));
}

}  // namespace acc::rendezvous
