// SPDX-License-Identifier: Apache-2.0
#include "plan/program_command.hpp"

#include "plan_fixture.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using test::PlanFixture;
using Words = std::vector<std::string>;

struct Fixture : PlanFixture {
  [[nodiscard]] Words command(const std::string& program, plan::ProgramKind kind = {}) const {
    Flags flags;
    flags.program = program;
    flags.arguments = {"--lr", "1"};
    return plan::program_command(flags, kind, environment, facts);
  }

  /// Returns the exit status of the error, or 0.
  [[nodiscard]] int status(const std::string& program, plan::ProgramKind kind = {}) const {
    try {
      static_cast<void>(command(program, kind));
      return 0;
    } catch (const Error& error) {
      CAPTURE(error.what());
      CHECK(std::string(error.what()).find(program) != std::string::npos);
      return exit_status(error);
    }
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "exit status 127: missing program, 126: not executable") {
  write("notes.txt", "");
  write("bin/other", "");
  write("lost", "#!/no/such/interpreter -x\n", true);
  write("windows", "#!/bin/sh\r\necho\r\n", true);
  CHECK(status("no_such_program") == 127);
  CHECK(status("./missing") == 127);
  CHECK(status("missing.py") == 127);
  CHECK(status("./notes.txt") == 126);
  CHECK(status("./bin") == 126);
  CHECK(status("./lost") == 126);
  CHECK(status("./windows") == 126);
  CHECK(status("./train") == 0);
}

TEST_CASE_FIXTURE(Fixture, "explain shows a program that does not exist") {
  write("notes.txt", "");
  const auto explained = [&](const std::string& program) {
    Flags flags;
    flags.program = program;
    flags.needs_program = false;
    return plan::program_command(flags, {.unbuffered = true}, environment, facts);
  };
  CHECK(explained("missing.py").back() == "missing.py");
  CHECK(explained("missing.py").size() == 3);
  CHECK(explained("no_such_program") == Words{"no_such_program"});
  CHECK(explained("./missing") == Words{"./missing"});
  CHECK_FALSE(
      acc::test::refusal([&] { explained("./notes.txt"); }, {Errc::not_executable}).empty());
}

TEST_CASE_FIXTURE(Fixture, "a script's interpreter may have an argument, and spaces before it") {
  write("blank", "#! /bin/sh -e\n", true);
  write("short", "#", true);
  write("relative", "#!./train\n", true);
  CHECK(command("./blank") == Words{"./blank", "--lr", "1"});
  CHECK(status("./short") == 0);
  CHECK(status("./relative") == 0);
}

TEST_CASE_FIXTURE(Fixture, "a Python program needs an existing Python") {
  write("train.py", "");
  environment["PYTHON_EXEC"] = "no_such_python";
  CHECK(acc::test::contains(
      acc::test::refusal([&] { return command("train.py"); }, {Errc::no_program}),
      "set PYTHON_EXEC"));
}

TEST_CASE_FIXTURE(Fixture, "in a virtual environment its Python runs the program") {
  write("train.py", "");
  write("bin/python3", "#!/bin/sh\n", true);
  facts.executable_directory = folder() / "bin";
  CHECK(command("train.py").front() != (folder() / "bin/python3").string());
  write("pyvenv.cfg", "");
  CHECK(command("train.py").front() == (folder() / "bin/python3").string());
  environment["PYTHON_EXEC"] = "./train";
  CHECK(command("train.py").front() == "./train");
}

}  // namespace acc::launcher
