// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_end.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <csignal>

using acc::launcher::supervision::ProcessEnd;
using Kind = ProcessEnd::Kind;

// Linux encodes wait statuses as: signal in bits 0-6, core dump flag in bit 7, code in bits 8-15.
TEST_CASE("process end: every exit code is decoded from the wait status") {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const ProcessEnd end = ProcessEnd::from_wait_status(code << 8);
    CHECK(end == ProcessEnd{Kind::exited, code});
    CHECK(end.ok() == (code == 0));
    CHECK(end.shell_status() == code);
    CHECK(end.describe() == "exited with code " + std::to_string(code));
  }
}

TEST_CASE("process end: every signal is decoded, with and without a core dump") {
  for (int signal = 1; signal <= 64; ++signal) {
    CAPTURE(signal);
    const ProcessEnd end = ProcessEnd::from_wait_status(signal);
    CHECK(end == ProcessEnd{Kind::killed, signal});
    CHECK_FALSE(end.ok());
    CHECK(end.shell_status() == 128 + signal);
    CHECK(ProcessEnd::from_wait_status(signal | 0x80) == ProcessEnd{Kind::killed, signal, true});
  }
}

TEST_CASE("process end: description in words") {
  const std::pair<ProcessEnd, const char*> cases[] = {
      {{Kind::killed, SIGKILL}, "killed by SIGKILL (signal 9)"},
      {{Kind::killed, SIGSEGV, true}, "killed by SIGSEGV (signal 11), core dumped"},
      {{Kind::killed, 64}, "killed by signal 64"},
      {{Kind::exited, 9}, "exited with code 9"},
      {{Kind::not_executed, EACCES}, "could not be executed: Permission denied"},
  };
  for (const auto& [end, text] : cases) {
    CHECK(end.describe() == text);
  }
}

TEST_CASE("process end: a program that cannot be executed has a shell's status 126 or 127") {
  CHECK(ProcessEnd{Kind::not_executed, ENOENT}.shell_status() == 127);
  CHECK(ProcessEnd{Kind::not_executed, EACCES}.shell_status() == 126);
  CHECK(ProcessEnd{Kind::not_executed, ENOEXEC}.shell_status() == 126);
}
