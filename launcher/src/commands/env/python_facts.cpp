// SPDX-License-Identifier: Apache-2.0
#include "commands/env/facts.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"

#include <array>
#include <sstream>

namespace acc::launcher::commands {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Reads the versions from the packages' metadata, because importing torch takes seconds.
constexpr std::string_view kQuestions = R"py(
import platform, sys
from importlib.metadata import PackageNotFoundError, version
print(platform.python_version(), "(" + sys.executable + ")")
for name in ("torch", "accelerate", "numpy"):
    try:
        print(version(name))
    except PackageNotFoundError:
        print("Not found")
)py";

constexpr std::array kNames = {"Python", "PyTorch", "Accelerate", "NumPy"};

}  // namespace

// The script prints one line per name in kNames. If Python cannot be started, all are "Not found".
Facts python_facts(const plugins::Environment& environment) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string python = plan::python_named(environment, program.parent_path());
  if (const auto found = plan::find_in_path(python, environment, ".")) {
    python = found->string();
  }
  std::istringstream lines(
      host::command_output({python, "-c", std::string(kQuestions)}, kPatience).value_or(""));
  Facts facts;
  for (const char* name : kNames) {
    std::string line;
    facts.emplace_back(name, std::getline(lines, line) ? line : "Not found");
  }
  return facts;
}

}  // namespace acc::launcher::commands
