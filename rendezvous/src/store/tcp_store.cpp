// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"

#include "net/backoff.hpp"
#include "store/key_names.hpp"
#include "store/store_connection.hpp"

#include <algorithm>
#include <utility>

namespace acc::rendezvous {

using wire::Opcode;
using wire::Request;

namespace {

// Limit of the strings of one request, because servers limit frames
// (ServerOptions::max_frame_bytes). A single key with its value always fits.
constexpr std::size_t kRequestBytes = std::size_t{16} << 20;

std::size_t size_of(const std::string& key) {
  return key.size();
}

std::size_t size_of(const Store::KeyValue& pair) {
  return pair.first.size() + pair.second.size();
}

/// Splits items into groups that fit one request each, by number and bytes.
template <typename Item>
std::vector<std::span<const Item>> pieces(std::span<const Item> items) {
  std::vector<std::span<const Item>> all;
  while (!items.empty()) {
    std::size_t count = 0;
    for (std::size_t bytes = 0; count < std::min(items.size(), wire::kMaxKeys); ++count) {
      bytes += size_of(items[count]);
      if (count > 0 && bytes > kRequestBytes) {
        break;
      }
    }
    all.push_back(items.first(count));
    items = items.subspan(count);
  }
  return all;
}

// Readers of replies, by the type of the reply.

void no_answer(ReplyReader&) {}

std::int64_t number(ReplyReader& reader) {
  return reader.i64();
}

std::string value(ReplyReader& reader) {
  return reader.bytes();
}

}  // namespace

TcpStore::TcpStore(std::string host, std::uint16_t port, Milliseconds connect_timeout,
                   TcpStoreOptions options)
    : TcpStore(std::make_unique<StoreConnection>(std::move(host), port, connect_timeout,
                                                 std::move(options))) {}

TcpStore::TcpStore(std::unique_ptr<StoreConnection> connection)
    : connection_(std::move(connection)) {}

TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  connection_->call(
      {.opcode = Opcode::set, .keys = {client_key(key)}, .values = {std::string(value)}},
      no_answer);
}

std::string TcpStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  wait({&name, 1}, timeout);
  return connection_->call({.opcode = Opcode::get, .keys = {client_key(key)}}, value);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  return connection_->call({.opcode = Opcode::add, .keys = {client_key(key)}, .number = delta},
                           number);
}

bool TcpStore::check(std::span<const std::string> keys) {
  return std::ranges::all_of(pieces(keys), [this](auto piece) {
    return connection_->call({.opcode = Opcode::check, .keys = client_keys(piece)},
                             [](ReplyReader& reader) { return reader.byte() == 0; });
  });
}

void TcpStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  const auto deadline = after(timeout);
  for (const auto piece : pieces(keys)) {
    const Request request{.opcode = Opcode::wait, .keys = client_keys(piece)};
    if (!connection_->await(request, time_left(deadline))) {
      throw Error(Errc::timeout,
                  fmt::format("timeout: no key {} at the store {} within {} ms", key_names(piece),
                              connection_->where(), timeout.count()));
    }
  }
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  return connection_->call({.opcode = Opcode::compare_set,
                            .keys = {client_key(key)},
                            .values = {std::string(expected), std::string(desired)}},
                           value);
}

bool TcpStore::delete_key(std::string_view key) {
  return connection_->call({.opcode = Opcode::delete_key, .keys = {client_key(key)}}, number) != 0;
}

std::int64_t TcpStore::num_keys() {
  return connection_->call({.opcode = Opcode::num_keys}, number);
}

std::vector<std::string> TcpStore::list_keys() {
  return connection_->call({.opcode = Opcode::list_keys}, [](ReplyReader& reader) {
    std::vector<std::string> keys;
    for (std::int64_t left = reader.i64(); left > 0; --left) {
      const std::string key = reader.bytes();
      if (key.starts_with('/')) {  // others are internal keys of PyTorch's client: "init/"
        keys.push_back(key.substr(1));
      }
    }
    return keys;
  });
}

void TcpStore::append(std::string_view key, std::string_view value) {
  connection_->call(
      {.opcode = Opcode::append, .keys = {client_key(key)}, .values = {std::string(value)}},
      no_answer);
}

std::vector<std::string> TcpStore::multi_get(std::span<const std::string> keys,
                                             Milliseconds timeout) {
  wait(keys, timeout);
  std::vector<std::string> values;
  for (const auto piece : pieces(keys)) {
    const Request request{.opcode = Opcode::multi_get, .keys = client_keys(piece)};
    connection_->call(request, [&](ReplyReader& reader) {
      for (std::size_t i = 0; i < piece.size(); ++i) {
        values.push_back(reader.bytes());
      }
    });
  }
  return values;
}

void TcpStore::multi_set(std::span<const KeyValue> pairs) {
  std::string frames;  // encoded completely before sending: encode may refuse any of the pairs
  for (const auto piece : pieces(pairs)) {
    Request request{.opcode = Opcode::multi_set};
    for (const auto& [key, value] : piece) {
      request.keys.push_back(client_key(key));
      request.values.push_back(value);
    }
    wire::encode(request, frames);
  }
  connection_->exchange(frames, connection_->call_timeout(), no_answer);
}

void TcpStore::queue_push(std::string_view queue, std::string_view value) {
  connection_->call(
      {.opcode = Opcode::queue_push, .keys = {client_key(queue)}, .values = {std::string(value)}},
      no_answer);
}

std::string TcpStore::queue_pop(std::string_view queue, Milliseconds timeout) {
  // The protocol has no blocking pop: the client waits for the queue, then pops.
  const auto deadline = after(timeout);
  Backoff backoff;
  while (connection_->await({.opcode = Opcode::wait, .keys = {client_key(queue)}},
                            time_left(deadline))) {
    if (auto value = try_queue_pop(queue)) {
      return *std::move(value);
    }
    // Another client has taken the value, or a key of that name exists, which satisfies WAIT.
    const Milliseconds left = time_left(deadline);
    if (left == Milliseconds::zero()) {
      break;
    }
    connection_->pause(std::min(backoff.next(), left));
  }
  throw Error(Errc::timeout,
              fmt::format("timeout: nothing in the queue {} at the store {} within {} ms", queue,
                          connection_->where(), timeout.count()));
}

std::optional<std::string> TcpStore::try_queue_pop(std::string_view queue) {
  return connection_->call({.opcode = Opcode::queue_pop, .keys = {client_key(queue)}},
                           [](ReplyReader& reader) {
                             const bool is_there = reader.i64() > 0;
                             return is_there ? std::optional(reader.bytes()) : std::nullopt;
                           });
}

std::int64_t TcpStore::queue_len(std::string_view queue) {
  return connection_->call({.opcode = Opcode::queue_len, .keys = {client_key(queue)}}, number);
}

void TcpStore::barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout) {
  const Request request{.opcode = Opcode::barrier, .keys = {client_key(key)}, .number = world_size};
  if (!connection_->await(request, timeout)) {
    throw Error(Errc::timeout,
                fmt::format("timeout: fewer than {} clients reached the barrier {} at the store {} "
                            "within {} ms",
                            world_size, key, connection_->where(), timeout.count()));
  }
}

std::unique_ptr<Store> TcpStore::clone() {
  return std::unique_ptr<Store>(new TcpStore(connection_->clone()));
}

void TcpStore::ping() {
  static constexpr std::uint32_t kNonce = 0x70696e67;
  connection_->call({.opcode = Opcode::ping, .number = kNonce}, [](ReplyReader& reader) {
    if (const std::uint32_t echo = reader.u32(); echo != kNonce) {
      throw Error(Errc::protocol,
                  fmt::format("a ping of 0x{:08x} came back as 0x{:08x}", kNonce, echo));
    }
  });
}

Pipeline TcpStore::pipeline() {
  return Pipeline(*connection_);
}

const std::string& TcpStore::host() const noexcept {
  return connection_->host();
}

std::uint16_t TcpStore::port() const noexcept {
  return connection_->port();
}

}  // namespace acc::rendezvous
