// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/program.hpp"

#include <unistd.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace acc::test {

/// Returns the command line: acclaunch torchrun [flags] /bin/sh -c script.
inline std::vector<std::string> torchrun(const std::vector<std::string>& flags,
                                         const std::string& script) {
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch", "torchrun"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"--no-python", "/bin/sh", "-c", script});
  return command;
}

/// Returns the flags of one machine of a c10d job with `nodes` ("2", "1:3") machines and the
/// rendezvous at `port`, followed by `more`.
inline std::vector<std::string> c10d_flags(const std::string& nodes, const ReservedPort& port,
                                           const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = {
      "--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:" + port.text()};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

/// Returns the flags of one of two machines of a static job. Machine 0 serves the store at `port`.
inline std::vector<std::string> static_flags(std::size_t rank, const ReservedPort& port) {
  return {"--nnodes",      "2",         "--node-rank",   std::to_string(rank),
          "--master-addr", "127.0.0.1", "--master-port", port.text()};
}

/// Returns the prefix of the lines of a rank in a job with several machines.
inline std::string prefix(int rank) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return std::string("[") + name.data() + " " + std::to_string(rank) + "] ";
}

/// The rendezvous of two machines.
enum class Way { fixed, c10d };

inline const char* way_name(Way way) {
  return way == Way::fixed ? "static" : "c10d";
}

/// Two launchers of one job on this host, with two workers each. With Way::c10d either may become
/// machine 0.
class TwoMachines {
 public:
  TwoMachines(Way way, const ReservedPort& port, const std::vector<std::string>& more,
              const std::string& script, const std::map<std::string, std::string>& variables = {}) {
    for (std::size_t rank = 0; rank < machines_.size(); ++rank) {
      std::vector<std::string> flags = way == Way::fixed
                                           ? static_flags(rank, port)
                                           : c10d_flags("2", port, {"--rdzv-id", "job"});
      flags.insert(flags.end(), {"--nproc-per-node", "2"});
      flags.insert(flags.end(), more.begin(), more.end());
      machines_[rank] = std::make_unique<Program>(torchrun(flags, script), variables);
    }
  }

  Program& operator[](int machine) { return *machines_[static_cast<std::size_t>(machine)]; }

 private:
  std::array<std::unique_ptr<Program>, 2> machines_;
};

}  // namespace acc::test
