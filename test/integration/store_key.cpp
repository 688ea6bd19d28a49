// SPDX-License-Identifier: Apache-2.0
// A worker that sets a key in the job's store, prints whether the key was new, and fails unless the
// job was restarted.
#include "acc/rendezvous/tcp_store.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int, char** argv) {
  const auto variable = [](const char* name) { return std::string(std::getenv(name)); };
  acc::rendezvous::TcpStore store(variable("MASTER_ADDR"),
                                  static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))),
                                  std::chrono::seconds(30));
  const std::string attempt = variable("TORCHELASTIC_RESTART_COUNT");
  const bool first = store.add(argv[1], 1) == 1;
  std::printf("%s was %s\n", attempt.c_str(), first ? "the first" : "late");
  return attempt == "0" ? 1 : 0;
}
