// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "support.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace acc::rendezvous::test {

using Variables = std::map<std::string, std::string>;

inline constexpr const char* kDaemon = ACC_BIN_DIR "/acc-rendezvous";

/// Runs acc-rendezvous as a child process.
class Daemon : public acc::test::Program {
 public:
  explicit Daemon(std::vector<std::string> flags, const Variables& variables = {})
      : Program(with_program(std::move(flags)), variables) {}

  /// Waits until it serves, and returns the port of the first address.
  std::uint16_t port() {
    wait_for_text("listening on ");
    const std::string line = out().substr(0, out().find('\n'));
    return static_cast<std::uint16_t>(std::stoi(line.substr(line.rfind(':') + 1)));
  }

 private:
  static std::vector<std::string> with_program(std::vector<std::string> flags) {
    flags.insert(flags.begin(), kDaemon);
    return flags;
  }
};

/// Output and exit status of a run that does not serve.
struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

inline Outcome run_daemon(std::vector<std::string> flags, const Variables& variables = {}) {
  Daemon daemon(std::move(flags), variables);
  const int status = daemon.wait();
  return {status, daemon.out(), daemon.err()};
}

inline sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

/// Returns a socket bound to `path`.
inline UniqueFd bound_to(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const sockaddr_un address = unix_address(path);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return socket;
}

}  // namespace acc::rendezvous::test
