#include "commands/env/facts.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"

#include <array>
#include <sstream>

namespace acc::launcher {
namespace {

// The packages' own records: an import of torch alone would take seconds.
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

Facts python_facts(const plugins::Environment& environment, const HostFacts& host) {
  const std::string name = plugins::variable(environment, "PYTHON_EXEC", "python3");
  const auto python = find_in_path(name, environment, host);
  const auto answers =
      python ? command_output(*python, {"-c", std::string(kQuestions)}) : std::nullopt;
  std::istringstream lines(answers.value_or(""));
  Facts facts;
  for (const char* fact : kNames) {
    std::string line;
    facts.emplace_back(fact, std::getline(lines, line) ? line : "Not found");
  }
  return facts;
}

}  // namespace acc::launcher
