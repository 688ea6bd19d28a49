// SPDX-License-Identifier: Apache-2.0
#include "control.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "client_settings.hpp"
#include "net/socket_stream.hpp"
#include "secure/secure_link.hpp"
#include "server/admin_session.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

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

/// Connects, sends the command and returns the answer. `link`: null for a Unix socket. Throws
/// TokenRefused if the daemon refuses the token of `link`.
std::string ask(const HostPort& address, secure::SecureLink* link, const std::string& request) {
  constexpr auto kNoLimit = SocketStream::TimePoint::max();
  const StoppablePoll poll{std::stop_token()};
  SocketStream stream(poll);
  try {
    stream.connect(address.host, address.port, kNoLimit);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("cannot connect: {}", error.what()));
  }
  std::string out = request;
  if (link != nullptr) {
    out.clear();
    link->start(out);
    link->send(request, out);
  }
  std::string received;
  std::array<char, 16 * 1024> buffer;
  for (;;) {
    stream.write(std::exchange(out, {}), kNoLimit);
    const std::size_t count = stream.read_some(buffer.data(), buffer.size(), kNoLimit);
    if (count == 0) {
      throw Error(
          Errc::connection,
          "no answer: the daemon closed the connection; it does not let this user administrate");
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
  try {
    return ask({address}, nullptr, request);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", address, error.what()));
  }
}

std::string ask_by_tcp(const std::string& text, const std::string& request) {
  const HostPort address = read_host_port(text);
  const auto security = client_security();
  std::string refusal;
  for (const Tokens& token : security->tokens.now().each()) {
    secure::SecureLink link(security, address.host, {Role::administrator, ""}, token);
    try {
      return ask(address, &link, request);
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
