// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "support/temporary_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace acc::test {

/// A named pipe at which workers wait (`read -r line < $GATE`) until the test lets them pass.
class Gate {
 public:
  Gate() : path_((folder_.path() / "gate").string()) {
    if (::mkfifo(path_.c_str(), 0600) != 0) {
      throw std::runtime_error("cannot make the named pipe " + path_);
    }
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Lets `count` workers pass, including workers that arrive later.
  void open(int count) {
    pipe_.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    for (int i = 0; i < count; ++i) {
      if (::write(pipe_.get(), "\n", 1) != 1) {
        throw std::runtime_error("cannot write to " + path_);
      }
    }
  }

  /// Returns when a worker waits at the gate. The worker continues to wait.
  void await_visitor() { pipe_.reset(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)); }

 private:
  TemporaryFolder folder_;
  std::string path_;
  UniqueFd pipe_;
};

}  // namespace acc::test
