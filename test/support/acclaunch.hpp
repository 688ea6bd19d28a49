#pragma once

#include <string>
#include <vector>

namespace acc::test {

/// acclaunch [flags] /bin/sh -c script
inline std::vector<std::string> acclaunch(const std::vector<std::string>& flags,
                                          const std::string& script) {
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"/bin/sh", "-c", script});
  return command;
}

}  // namespace acc::test
