// SPDX-License-Identifier: Apache-2.0
// acclaunch on a terminal: the status line appears, and is removed at the end.
#include "support/screen.hpp"
#include "support/terminal_session.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>

using namespace acc::test;

namespace {

/// A script on a terminal: its output and its exit status.
struct Session {
  explicit Session(const std::string& script) {
    TerminalSession terminal({"/bin/sh", "-c", script});
    const int wait_status = terminal.wait();
    bytes = terminal.bytes();
    status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  }

  std::string bytes;
  int status = -1;
};

const std::string kJob = ACC_BIN_DIR "/acclaunch --cpu --num_processes 2 /bin/sh -c 'echo hello'";

}  // namespace

TEST_CASE("terminal: the status line is erased before output, and at the end") {
  const Session session("exec " + kJob);
  CHECK(session.status == 0);
  CHECK(contains(session.bytes, "acclaunch: 2 of 2 workers, 0:0"));
  CHECK(contains(session.bytes, "\033[36m[0] \033[0mhello\r\n"));
  const std::string screen = shown(session.bytes);
  CHECK(contains(screen, "[0] hello\n"));
  CHECK(contains(screen, "[1] hello\n"));
  CHECK_FALSE(contains(screen, "of 2 workers"));
  CHECK(screen.ends_with("\n"));
}

TEST_CASE("terminal: no status line of a job in the background") {
  const Session session("set -m; " + kJob + " & wait $!");
  CHECK(session.status == 0);
  CHECK_FALSE(contains(session.bytes, "of 2 workers"));
  CHECK(contains(shown(session.bytes), "[0] hello\n"));
}

TEST_CASE("terminal: Ctrl-C that a single worker handles itself is not a failure") {
  const Session session("exec " ACC_BIN_DIR
                        "/acclaunch --cpu --num_processes 1 /bin/sh -c 'kill -INT $$'");
  CHECK(session.status == 128 + SIGINT);
  CHECK(contains(session.bytes, "stopped by SIGINT"));
  CHECK_FALSE(contains(session.bytes, "failed"));
}
