// SPDX-License-Identifier: Apache-2.0
#include "control.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "client_settings.hpp"
#include "secure/secure_link.hpp"
#include "server/admin_session.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

std::string encoded(std::span<const std::string> words) {
  std::string body;
  for (const std::string& word : words) {
    body += word;
    body.push_back('\0');
  }
  const auto size = static_cast<std::uint32_t>(body.size());
  return std::string(kAdminHello) + std::string(reinterpret_cast<const char*>(&size), sizeof size) +
         body;
}

/// Returns the complete answer in `received`; nothing if a part is missing.
std::optional<std::string> answer_in(const std::string& received) {
  std::uint32_t size = 0;
  if (received.size() < sizeof size) {
    return std::nullopt;
  }
  std::memcpy(&size, received.data(), sizeof size);
  if (size == 0 || received.size() < sizeof size + size) {
    return std::nullopt;
  }
  return received.substr(sizeof size, size);
}

/// Sends the command and returns the answer. `link`: null for a Unix socket.
template <typename Socket>
std::string exchange(Socket& socket, secure::SecureLink* link, const std::string& request) {
  std::string out;
  std::string received;
  if (link != nullptr) {
    link->start(out);
    link->send(request, out);
  } else {
    out = request;
  }
  std::array<char, 16 * 1024> buffer;
  for (;;) {
    error_code error;
    asio::write(socket, asio::buffer(out), error);
    out.clear();
    const std::size_t count = error ? 0 : socket.read_some(asio::buffer(buffer), error);
    if (count == 0) {
      throw Error(Errc::connection,
                  fmt::format("no answer: {}", error == asio::error::eof
                                                   ? "the daemon closed the connection; it "
                                                     "does not let this user administrate"
                                                   : error.message()));
    }
    if (link != nullptr) {
      link->receive({buffer.data(), count}, received, out);
    } else {
      received.append(buffer.data(), count);
    }
    if (const auto answer = answer_in(received)) {
      return *answer;
    }
  }
}

std::string ask_by_unix(const std::string& address, const std::string& request) {
  if (const std::string fault = unix_fault(address); !fault.empty()) {
    throw Error(Errc::config, address + ": " + fault);
  }
  asio::io_context io(1);
  asio::local::stream_protocol::socket socket(io);
  error_code error;
  socket.connect(asio::local::stream_protocol::endpoint(unix_address(address).sun_path), error);
  if (error) {
    throw Error(Errc::connection,
                fmt::format("cannot connect to {}: {}", address, error.message()));
  }
  try {
    return exchange(socket, nullptr, request);
  } catch (const Error& failure) {
    throw Error(failure.code(), fmt::format("{}: {}", address, failure.what()));
  }
}

/// Connects and sends the command. Throws TokenRefused if the daemon refuses the token of `link`.
std::string ask_once(const HostPort& address, secure::SecureLink& link,
                     const std::string& request) {
  asio::io_context io(1);
  asio::ip::tcp::socket socket(io);
  asio::ip::tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
  if (!error) {
    asio::connect(socket, found, error);
  }
  if (error) {
    throw Error(Errc::connection, fmt::format("cannot connect: {}", error.message()));
  }
  return exchange(socket, &link, request);
}

std::string ask_by_tcp(const std::string& text, const std::string& request) {
  const HostPort address = read_host_port(text);
  const auto security = client_security();
  std::string refusal;
  for (const Tokens& token : security->tokens.now().each()) {
    secure::SecureLink link(security, address.host, {Role::administrator, ""}, token);
    try {
      return ask_once(address, link, request);
    } catch (const TokenRefused& refused) {
      refusal = refused.what();  // a daemon reads a new token at SIGHUP
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", text, error.what()));
    }
  }
  throw Error(Errc::config, fmt::format("{}: {}", text, refusal));
}

}  // namespace

int control(std::span<const std::string> arguments) {
  if (arguments.size() < 2 || arguments[0].starts_with('-')) {
    throw Error(Errc::config,
                "usage: acc-rendezvous ctl unix:/PATH|HOST:PORT COMMAND [ARGUMENT...]; the command "
                "`help` lists all");
  }
  const std::string request = encoded(arguments.subspan(1));
  const std::string answer = is_unix(arguments[0]) ? ask_by_unix(arguments[0], request)
                                                   : ask_by_tcp(arguments[0], request);
  const std::string_view text = std::string_view(answer).substr(1);
  if (answer.front() != '\0') {
    notice_lines(Component::rendezvous, LogLevel::err, "acc-rendezvous ctl: ", std::string(text));
    return 1;
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace acc::rendezvous
