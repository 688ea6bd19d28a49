// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"

namespace acc {

std::string_view to_string(Errc code) noexcept {
  switch (code) {
    case Errc::invalid_argument: return "invalid_argument";
    case Errc::config: return "config";
    case Errc::disagreement: return "disagreement";
    case Errc::not_supported: return "not_supported";
    case Errc::not_found: return "not_found";
    case Errc::timeout: return "timeout";
    case Errc::connection: return "connection";
    case Errc::protocol: return "protocol";
    case Errc::process: return "process";
    case Errc::collective: return "collective";
    case Errc::peer_lost: return "peer_lost";
    case Errc::device: return "device";
    case Errc::out_of_memory: return "out_of_memory";
    case Errc::no_program: return "no_program";
    case Errc::not_executable: return "not_executable";
    case Errc::internal: return "internal";
  }
  return "unknown";
}

// 124, 126 and 127 are the statuses of timeout(1) and of POSIX shells. 2 is the status of argparse,
// which torchrun and accelerate use, for a wrong command line.
int exit_status(const Error& error) noexcept {
  switch (error.code()) {
    case Errc::invalid_argument:
    case Errc::config:
    case Errc::disagreement:
    case Errc::not_supported:
    case Errc::not_found:
    case Errc::device: return 2;
    case Errc::timeout: return 124;
    case Errc::not_executable: return 126;
    case Errc::no_program: return 127;
    default: return 1;
  }
}

}  // namespace acc
