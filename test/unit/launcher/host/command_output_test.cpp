// SPDX-License-Identifier: Apache-2.0
#include "host/command_output.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

using acc::launcher::host::command_output;

TEST_CASE("command output: what a command wrote, or nothing if it failed") {
  using Output = std::optional<std::string>;
  struct Case {
    std::vector<std::string> command;
    Output output;
  };
  const auto script = [](const char* text) {
    return std::vector<std::string>{"/bin/sh", "-c", text};
  };
  const Case kCases[] = {
      {script("echo one; echo two"), "one\ntwo\n"},
      {script("echo text; echo error >&2"), "text\n"},
      {script("cat; echo end of input"), "end of input\n"},
      {script(":"), ""},
      {{"/bin/echo", "a b", ""}, "a b \n"},
      {script("head -c 200000 /dev/zero | tr '\\0' x"), std::string(200'000, 'x')},
      {script("echo text; exit 3"), std::nullopt},
      {script("echo text; kill -9 $$"), std::nullopt},
      {{"/no/such/program"}, std::nullopt},
      {{"/"}, std::nullopt},
  };
  for (const auto& [command, output] : kCases) {
    CAPTURE(command.back());
    CHECK(command_output(command) == output);
  }
}

TEST_CASE("command output: a command that exceeds the limit is killed") {
  for (const char* script : {"exec sleep 1000", "exec sleep 1000 >&-", "kill -STOP $$"}) {
    CAPTURE(script);
    CHECK(command_output({"/bin/sh", "-c", script}, std::chrono::milliseconds(50)) == std::nullopt);
  }
}
