// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace acc::test {

/// Returns the command line: acclaunch [flags] /bin/sh -c script.
inline std::vector<std::string> acclaunch(const std::vector<std::string>& flags,
                                          const std::string& script) {
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

/// Options of a shell that starts a job.
struct InShell {
  std::string before = "true";  ///< runs first
  std::string wrapper = {};     ///< a program that starts the launcher, followed by a space
  std::string flags = "--num_processes 2";
  std::string redirections = {};
};

/// Returns the command line:
/// /bin/sh -c "before; exec wrapper acclaunch --cpu flags /bin/sh -c script redirections".
inline std::vector<std::string> in_shell(const std::string& script, const InShell& shell = {}) {
  return {"/bin/sh", "-c",
          shell.before + "\nexec " + shell.wrapper + ACC_BIN_DIR "/acclaunch --cpu " + shell.flags +
              " /bin/sh -c \"$0\" " + shell.redirections,
          script};
}

}  // namespace acc::test
