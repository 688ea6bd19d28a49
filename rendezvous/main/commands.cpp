// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/base/written_file.hpp"
#include "acc/rendezvous/security.hpp"
#include "acc/rendezvous/tunnel.hpp"
#include "client_settings.hpp"
#include "control.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

constexpr std::chrono::hours kOneDay{24};
constexpr std::int64_t kDefaultDays = 3650;

[[noreturn]] void wrong_usage(std::string_view name) {
  const std::array words{std::string(name)};
  const Command& command = *find_command(words);
  throw Error(Errc::config,
              fmt::format("usage: acc-rendezvous {} {}", command.name, command.usage));
}

int init_tls(std::span<const std::string> arguments) {
  if (arguments.empty() || arguments.front().starts_with('-')) {
    wrong_usage("init-tls");
  }
  std::vector<std::string> hosts;
  std::int64_t days = kDefaultDays;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] != "--days") {
      hosts.push_back(arguments[i]);
      continue;
    }
    const auto given = parse_integer(i + 1 < arguments.size() ? arguments[i + 1] : "");
    if (!given || *given < -1 || *given > 36500) {
      throw Error(Errc::config, "--days: expected a number of days up to 36500");
    }
    days = *given;
    ++i;
  }
  make_tls_folder(arguments.front(), hosts, days * kOneDay);
  const auto folder = std::filesystem::absolute(arguments.front()).lexically_normal();
  fmt::print(
      "wrote ca, server and client certificates with their keys, and token, to {}\n"
      "The daemon needs token, server.pem and server.key; its settings are\n"
      "ACC_RENDEZVOUS_TOKEN_FILE={}\nACC_RENDEZVOUS_TLS_CERT={}\nACC_RENDEZVOUS_TLS_KEY={}\n",
      printable(arguments.front()), printable((folder / "token").string()),
      printable((folder / "server.pem").string()), printable((folder / "server.key").string()));
  return 0;
}

int job_token(std::span<const std::string> arguments) {
  if (arguments.size() != 1 || arguments.front().starts_with("--")) {
    wrong_usage("job-token");
  }
  fmt::print("{}\n", token_of_environment().job_token(arguments.front()));
  return 0;
}

int reader_token(std::span<const std::string> arguments) {
  if (!arguments.empty()) {
    wrong_usage("reader-token");
  }
  fmt::print("{}\n", token_of_environment().reader_token());
  return 0;
}

int rotate_token(std::span<const std::string> arguments) {
  if (arguments.size() != 1 || arguments.front().starts_with("--")) {
    wrong_usage("rotate-token");
  }
  check_replaceable(arguments.front());
  const std::string old = Tokens::read(arguments.front()).current();
  ::umask(S_IRWXG | S_IRWXO);
  write_file(arguments.front(), make_token() + "\n" + old + "\n", Overwrite::yes);
  return 0;
}

int tunnel(std::span<const std::string> arguments) {
  if (arguments.size() < 2 || arguments.size() > 3) {
    wrong_usage("tunnel");
  }
  const HostPort target = read_host_port(arguments[0]);
  const auto port = parse_integer(arguments.size() == 3 ? arguments[2] : std::string("0"));
  if (!port || *port < 0 || *port > std::numeric_limits<std::uint16_t>::max()) {
    throw Error(Errc::config, fmt::format("\"{}\": expected a port", arguments[2]));
  }
  boost::asio::io_context io(1);
  std::optional<Tunnel> open;
  open.emplace(
      io, static_cast<std::uint16_t>(*port), Tunnel::Target{target.host, target.port, arguments[1]},
      client_security(),
      [](const std::string& why) { logger(Component::rendezvous).error("{}", printable(why)); });
  fmt::print("listening on 127.0.0.1:{}\n", open->port());
  std::fflush(stdout);
  boost::asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code&, int) {
    open.reset();
    io.stop();
  });
  io.run();
  return 0;
}

constexpr std::array kCommands = {
    Command{"ctl", "unix:/PATH|HOST:PORT COMMAND [ARGUMENT...]",
            "administrate a daemon: list, dump, drain, resume, end RUN_ID [REASON], evict RUN_ID "
            "HOST [REASON]",
            control},
    Command{"rotate-token", "FILE",
            "put a new token in front of the one in a token file; a daemon reads it at SIGHUP",
            rotate_token},
    Command{"init-tls", "DIR [HOST...] [--days N]",
            "write a certificate authority, certificates for server and clients, and a token",
            init_tls},
    Command{"job-token", "RUN_ID",
            "print a token that is valid for one job, made from the one "
            "in ACC_RENDEZVOUS_TOKEN_FILE",
            job_token},
    Command{"reader-token", "",
            "print a token with which the status page, the HTTP API and the metrics can be read, "
            "and nothing else, made from the one in ACC_RENDEZVOUS_TOKEN_FILE",
            reader_token},
    Command{"tunnel", "HOST:PORT RUN_ID [PORT]",
            "serve the TCPStore of a secure rendezvous on loopback, for clients without a token",
            tunnel},
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

const Command* find_command(std::span<const std::string> arguments) {
  const auto found = arguments.empty()
                         ? kCommands.end()
                         : std::ranges::find(kCommands, arguments.front(), &Command::name);
  return found == kCommands.end() ? nullptr : &*found;
}

}  // namespace acc::rendezvous
