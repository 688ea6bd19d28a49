#include "acc/rendezvous/tcp_store.hpp"

#include "acc/base/error.hpp"
#include "backoff.hpp"
#include "socket_stream.hpp"
#include "wire/frames.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace acc::rendezvous {

using wire::Opcode;
using wire::Request;

namespace {

using Clock = Store::Clock;
using Milliseconds = Store::Milliseconds;

// A single attempt may take this long; a lost SYN should not eat the whole connect time.
constexpr Milliseconds kAttemptTimeout{10'000};

/// torch's client puts a slash in front of each key.
std::string wire_key(std::string_view key) {
  return "/" + std::string(key);
}

std::vector<std::string> wire_keys(std::span<const std::string> keys) {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) {
    all.push_back(wire_key(key));
  }
  return all;
}

/// `Milliseconds::max()` means for ever and must not overflow.
Clock::time_point after(Milliseconds timeout) {
  const auto now = Clock::now();
  const auto room = std::chrono::duration_cast<Milliseconds>(Clock::time_point::max() - now);
  return timeout < room ? now + timeout : Clock::time_point::max();
}

}  // namespace

class TcpStore::Impl {
 public:
  Impl(std::string host, std::uint16_t port, Milliseconds connect_timeout,
       Milliseconds call_timeout)
      : host_(std::move(host)),
        port_(port),
        connect_timeout_(connect_timeout),
        call_timeout_(call_timeout) {
    connect();
  }

  /// Runs one exchange of `exchange(deadline)` after sending `request`.
  template <typename Exchange>
  auto call(const Request& request, Exchange&& exchange) {
    std::string frame;
    wire::encode(request, frame);
    if (!stream_) {
      throw Error(Errc::connection,
                  fmt::format("the connection to the store at {} was lost before", where()));
    }
    try {
      const auto deadline = after(call_timeout_);
      stream_.write(frame, deadline);
      return exchange(deadline);
    } catch (const Error& error) {
      stream_.close();
      throw Error(error.code(), fmt::format("store at {}: {}", where(), error.what()));
    }
  }

  void send(const Request& request) {
    call(request, [](auto) {});
  }
  std::int64_t call_i64(const Request& request) {
    return call(request, [this](auto deadline) { return read_i64(deadline); });
  }
  char call_byte(const Request& request) {
    return call(request, [this](auto deadline) { return read_byte(deadline); });
  }
  std::string call_bytes(const Request& request) {
    return call(request, [this](auto deadline) { return read_bytes(deadline); });
  }

  void wait(std::span<const std::string> keys, Milliseconds timeout);
  std::string read_bytes(Clock::time_point deadline);

  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] Milliseconds connect_timeout() const noexcept { return connect_timeout_; }
  [[nodiscard]] Milliseconds call_timeout() const noexcept { return call_timeout_; }

 private:
  void connect();
  void handshake(Clock::time_point deadline);
  bool cancel_wait();
  void expect(char byte, char expected) const;
  char read_byte(Clock::time_point deadline);
  std::int64_t read_i64(Clock::time_point deadline);
  [[nodiscard]] std::string where() const { return fmt::format("{}:{}", host_, port_); }

  std::string host_;
  std::uint16_t port_;
  Milliseconds connect_timeout_;
  Milliseconds call_timeout_;
  SocketStream stream_;
};

void TcpStore::Impl::connect() {
  const auto deadline = after(connect_timeout_);
  Backoff backoff;
  while (true) {
    std::string reason;
    try {
      const auto attempt = std::min(deadline, after(kAttemptTimeout));
      stream_ = SocketStream(host_, port_, attempt);
      return handshake(attempt);
    } catch (const Error& error) {
      stream_.close();
      if (error.code() == Errc::protocol) {
        throw;
      }
      reason = error.what();
    }
    const auto pause = backoff.next();
    if (after(pause) >= deadline) {
      throw Error(Errc::timeout, fmt::format("cannot reach the store at {} within {} ms: {}",
                                             where(), connect_timeout_.count(), reason));
    }
    std::this_thread::sleep_for(pause);
  }
}

void TcpStore::Impl::handshake(Clock::time_point deadline) {
  const auto nonce = static_cast<std::uint32_t>(getpid());
  std::string hello;
  wire::encode({.opcode = Opcode::validate, .number = wire::kMagic}, hello);
  wire::encode({.opcode = Opcode::ping, .number = nonce}, hello);
  stream_.write(hello, deadline);
  std::array<char, 4> echo{};
  stream_.read(echo.data(), echo.size(), deadline);
  if (wire::get_u32(echo.data()) != nonce) {
    throw Error(Errc::protocol,
                fmt::format("{} is no TCPStore server: it answered a ping with 0x{:08x}, not "
                            "0x{:08x}",
                            where(), wire::get_u32(echo.data()), nonce));
  }
}

void TcpStore::Impl::wait(std::span<const std::string> keys, Milliseconds timeout) {
  const Request request{.opcode = Opcode::wait, .keys = wire_keys(keys)};
  const bool released = call(request, [&](auto) {
    if (!stream_.readable(after(timeout))) {
      return cancel_wait();
    }
    expect(read_byte(after(call_timeout_)), wire::kReleased);
    return true;
  });
  if (!released) {
    throw Error(Errc::timeout, fmt::format("no key {} at the store {} within {} ms",
                                           fmt::join(keys, ", "), where(), timeout.count()));
  }
}

/// True when the release crossed the cancel: then the keys are there after all.
bool TcpStore::Impl::cancel_wait() {
  const auto deadline = after(call_timeout_);
  std::string frame;
  wire::encode({.opcode = Opcode::cancel_wait}, frame);
  stream_.write(frame, deadline);
  const char first = read_byte(deadline);
  if (first == wire::kReleased) {
    expect(read_byte(deadline), wire::kCancelled);
    return true;
  }
  expect(first, wire::kCancelled);
  return false;
}

void TcpStore::Impl::expect(char byte, char expected) const {
  if (byte != expected) {
    throw Error(Errc::protocol,
                fmt::format("WAIT answered with {}, expected {}", int{byte}, int{expected}));
  }
}

char TcpStore::Impl::read_byte(Clock::time_point deadline) {
  char byte = 0;
  stream_.read(&byte, 1, deadline);
  return byte;
}

std::int64_t TcpStore::Impl::read_i64(Clock::time_point deadline) {
  std::array<char, 8> bytes{};
  stream_.read(bytes.data(), bytes.size(), deadline);
  return wire::get_i64(bytes.data());
}

std::string TcpStore::Impl::read_bytes(Clock::time_point deadline) {
  const auto length = static_cast<std::uint64_t>(read_i64(deadline));
  if (length > wire::kMaxFrameBytes) {
    throw Error(Errc::protocol, fmt::format("a value of {} bytes was announced", length));
  }
  std::string bytes(length, '\0');
  stream_.read(bytes.data(), bytes.size(), deadline);
  return bytes;
}

TcpStore::TcpStore(std::string host, std::uint16_t port, Milliseconds connect_timeout,
                   Milliseconds call_timeout)
    : impl_(std::make_unique<Impl>(std::move(host), port, connect_timeout, call_timeout)) {}

TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
  impl_->send({.opcode = Opcode::set, .keys = {wire_key(key)}, .values = {std::string(value)}});
}

std::string TcpStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  impl_->wait(std::span(&name, 1), timeout);
  return impl_->call_bytes({.opcode = Opcode::get, .keys = {wire_key(key)}});
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  return impl_->call_i64({.opcode = Opcode::add, .keys = {wire_key(key)}, .number = delta});
}

bool TcpStore::check(std::span<const std::string> keys) {
  return impl_->call_byte({.opcode = Opcode::check, .keys = wire_keys(keys)}) == 0;
}

void TcpStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  impl_->wait(keys, timeout);
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) {
  return impl_->call_bytes({.opcode = Opcode::compare_set,
                            .keys = {wire_key(key)},
                            .values = {std::string(expected), std::string(desired)}});
}

bool TcpStore::delete_key(std::string_view key) {
  return impl_->call_i64({.opcode = Opcode::delete_key, .keys = {wire_key(key)}}) != 0;
}

std::int64_t TcpStore::num_keys() {
  return impl_->call_i64({.opcode = Opcode::num_keys});
}

void TcpStore::append(std::string_view key, std::string_view value) {
  impl_->send({.opcode = Opcode::append, .keys = {wire_key(key)}, .values = {std::string(value)}});
}

std::vector<std::string> TcpStore::multi_get(std::span<const std::string> keys) {
  const Request request{.opcode = Opcode::multi_get, .keys = wire_keys(keys)};
  return impl_->call(request, [&](auto deadline) {
    std::vector<std::string> values;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      values.push_back(impl_->read_bytes(deadline));
    }
    return values;
  });
}

void TcpStore::multi_set(std::span<const std::pair<std::string, std::string>> pairs) {
  Request request{.opcode = Opcode::multi_set};
  for (const auto& [key, value] : pairs) {
    request.keys.push_back(wire_key(key));
    request.values.push_back(value);
  }
  impl_->send(request);
}

std::unique_ptr<Store> TcpStore::clone() {
  return std::make_unique<TcpStore>(impl_->host(), impl_->port(), impl_->connect_timeout(),
                                    impl_->call_timeout());
}

const std::string& TcpStore::host() const noexcept {
  return impl_->host();
}

std::uint16_t TcpStore::port() const noexcept {
  return impl_->port();
}

}  // namespace acc::rendezvous
