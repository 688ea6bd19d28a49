// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "systemd.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Shortest interval of STATUS messages to the service manager.
constexpr std::chrono::seconds kStatusInterval{1};

/// Calls a function at a fixed interval until `stop`.
class Repeat {
 public:
  Repeat(asio::io_context& io, asio::steady_timer::duration interval, std::function<void()> what)
      : timer_(io), interval_(interval), what_(std::move(what)) {
    again();
  }
  void stop() {
    is_stopped_ = true;  // cancel has no effect on a timer that has expired and is queued
    timer_.cancel();
  }

 private:
  void again() {
    timer_.expires_after(interval_);
    timer_.async_wait([this](const error_code& error) {
      if (!error && !is_stopped_) {
        what_();
        again();
      }
    });
  }

  asio::steady_timer timer_;
  asio::steady_timer::duration interval_;
  std::function<void()> what_;
  bool is_stopped_ = false;
};

/// Owns the file with the addresses of the daemon. It exists only while the daemon serves.
class PortFile {
 public:
  /// An empty path means no file. Removes a file that a dead daemon left behind; the new one gets
  /// its owner and permissions. Throws Error(config) for anything but a regular file.
  explicit PortFile(std::filesystem::path path) : path_(std::move(path)) {
    if (path_.empty()) {
      return;
    }
    next_.emplace(path_);
    if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
      throw file_error("remove", path_, errno);
    }
  }

  /// Writes the file atomically: a reader never sees a part of it. Throws Error(config).
  void write(std::string_view text) {
    if (next_) {
      next_->write(text);
      next_->commit();
      next_.reset();
      written_.emplace(path_);
    }
  }
  /// Removes the file unless another one has taken its place.
  void remove() {
    next_.reset();
    written_.reset();
  }

 private:
  std::filesystem::path path_;
  std::optional<AtomicFile> next_;  // until `write`
  std::optional<OwnedFile> written_;
};

/// Socket activation: inherited sockets replace the settings `host` and `port`.
std::vector<Listener> open_listeners(const Options& options) {
  std::vector<Listener> listeners;
  for (UniqueFd& socket : inherited_sockets()) {
    listeners.push_back(adopt(std::move(socket)));
  }
  if (listeners.empty()) {
    return listen_on(options.hosts, options.port);
  }
  return listeners;
}

std::vector<std::string> addresses_of(const std::vector<Listener>& listeners) {
  std::vector<std::string> addresses;
  addresses.reserve(listeners.size());
  for (const Listener& listener : listeners) {
    addresses.push_back(listener.address);
  }
  return addresses;
}

/// Returns the address at which other machines reach a listener, as far as this one knows it.
std::string address_for_others(const Listener& listener) {
  const bool is_everywhere =
      listener.address.starts_with("0.0.0.0:") || listener.address.starts_with("[::]:");
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (!is_everywhere || ::gethostname(name.data(), HOST_NAME_MAX) != 0) {
    return listener.address;
  }
  return fmt::format("{}:{}", name.data(), listener.port);
}

/// Refuses listeners that other machines can reach, unless clients need a token or the user has
/// chosen this.
void check_open(const Options& options, const std::vector<Listener>& listeners) {
  const bool has_token = options.server.security && options.server.security->tokens;
  for (const Listener& listener : listeners) {
    if (listener.is_open && !has_token && !options.is_insecure) {
      throw Error(Errc::config,
                  warning_of_open(listener.address) +
                      ". Give --token_file FILE, or --insecure to serve without a token");
    }
    if (listener.is_open && !has_token) {
      logger(Component::rendezvous).warn("{}", warning_of_open(listener.address));
    }
  }
}

/// Raises the limit of file descriptors as far as possible, and adapts max_connections to it. A
/// default that does not fit is lowered silently; a value that the user gave stays, with a warning.
void fit_connections(Options& options) {
  constexpr std::size_t kOthers = 64;  // listeners, the event loop and the standard streams
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t fitting = std::max<std::size_t>(limit.rlim_cur, kOthers + 1) - kOthers;
  std::size_t& most = options.server.max_connections;
  if (!options.chose_max_connections) {
    most = std::min(most, fitting);
  } else if (most > fitting) {
    logger(Component::rendezvous)
        .warn(
            "max_connections is {}, but this process may open at most {} file descriptors "
            "(RLIMIT_NOFILE): raise the limit (ulimit -Hn, LimitNOFILE=) or lower max_connections",
            most, limit.rlim_cur);
  }
}

/// The daemon: the server, signals, the port file and the service manager, on one io_context.
class Service {
 public:
  Service(const Options& options, std::vector<Listener> listeners, ReadOptions read_again)
      : read_again_(std::move(read_again)),
        max_connections_(options.server.max_connections),
        port_file_(options.port_file),
        addresses_(addresses_of(listeners)),
        server_(io_, std::move(listeners), options.server),
        signals_(io_, SIGINT, SIGTERM, SIGHUP) {
    server_security_ = options.server.security;
  }

  void run() {
    announce();
    wait_for_signal();
    if (manager_.listens()) {
      repeats_.push_back(
          std::make_unique<Repeat>(io_, kStatusInterval, [this] { report_status(); }));
    }
    // The heartbeat of the watchdog comes from the loop that serves, so that a hanging loop is
    // noticed; at half the limit, as sd_watchdog_enabled(3) recommends.
    if (const auto limit = watchdog_limit(); limit && manager_.listens()) {
      repeats_.push_back(
          std::make_unique<Repeat>(io_, *limit / 2, [this] { manager_.notify("WATCHDOG=1"); }));
    }
    io_.run();
  }

 private:
  /// Publishes the addresses in the port file, on standard output and with READY. The listeners are
  /// open already, so a reader of any of them can connect at once.
  void announce() {
    std::string lines;
    for (const std::string& address : addresses_) {
      lines += address + "\n";
    }
    port_file_.write(lines);
    for (const std::string& address : addresses_) {
      fmt::print("listening on {}\n", address);
    }
    std::fflush(stdout);
    reported_status_ = status_text();
    manager_.notify("READY=1\nSTATUS=" + reported_status_);
  }

  [[nodiscard]] std::string status_text() const {
    return fmt::format("{}jobs {}, connections {}, keys {}", server_.leads() ? "" : "standing by, ",
                       server_.num_jobs(), server_.num_connections(), server_.num_keys());
  }

  void report_status() {
    if (std::string text = status_text(); text != reported_status_) {
      reported_status_ = std::move(text);
      manager_.notify("STATUS=" + reported_status_);
    }
  }

  void wait_for_signal() {
    signals_.async_wait([this](const error_code& error, int signal) {
      if (!error) {
        on_signal(signal);
      }
    });
  }

  void on_signal(int signal) {
    if (signal == SIGHUP) {
      logger(Component::rendezvous).info("{}", status_text());
      reload();
      return wait_for_signal();
    }
    stop();
  }

  /// Applies the settings again. Wrong ones change nothing.
  void reload() {
    try {
      Options options = read_again_();
      const bool needed = server_security_ && server_security_->tokens.has_value();
      if (needed && !(options.server.security && options.server.security->tokens)) {
        throw Error(Errc::not_supported, "the token cannot be removed while the daemon serves");
      }
      if (needed) {
        auto security = std::make_shared<ServerSecurity>(*options.server.security);
        security->tokens->remember(*server_security_->tokens);
        options.server.security = std::move(security);
      }
      set_log_settings(options.log);
      if (!options.chose_max_connections) {
        options.server.max_connections = max_connections_;
      }
      server_security_ = options.server.security;
      server_.reconfigure(options.server);
      logger(Component::rendezvous).info("the settings are read again");
    } catch (const Error& error) {
      logger(Component::rendezvous).error("the settings stay as they are: {}", error.what());
    }
  }

  /// Starts the shutdown. `run` returns when the loop has no more work, after the last replies are
  /// sent. The handlers are removed, so that a second signal kills the process (default action).
  void stop() {
    signals_.remove(SIGINT);
    signals_.remove(SIGTERM);
    manager_.notify("STOPPING=1\nSTATUS=stopping");
    port_file_.remove();
    for (const auto& repeat : repeats_) {
      repeat->stop();
    }
    server_.stop();
  }

  ReadOptions read_again_;
  std::size_t max_connections_;
  std::shared_ptr<const ServerSecurity> server_security_;
  asio::io_context io_{1};
  PortFile port_file_;
  std::vector<std::string> addresses_;
  ServiceManager manager_;
  Server server_;
  asio::signal_set signals_;
  std::vector<std::unique_ptr<Repeat>> repeats_;
  std::string reported_status_;
};

}  // namespace

void run_service(Options options, ReadOptions read_again) {
  std::signal(SIGPIPE, SIG_IGN);  // the reader of standard output may have closed it
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` then fails with EFBIG
  fit_connections(options);
  std::vector<Listener> listeners = open_listeners(options);
  check_open(options, listeners);
  if (options.server.address.empty()) {
    options.server.address = address_for_others(listeners.front());
  }
  Service(options, std::move(listeners), std::move(read_again)).run();
}

}  // namespace acc::rendezvous
