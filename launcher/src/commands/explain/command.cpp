// SPDX-License-Identifier: Apache-2.0
// acclaunch explain: makes the plan of a launch and prints it instead of running it.
#include "acc/base/error.hpp"
#include "acc/launcher/explain.hpp"
#include "acc/launcher/front_end.hpp"
#include "commands/commands.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

constexpr std::string_view kUsage =
    "acclaunch explain shows what a launch would do, without starting anything.\n\n"
    "  acclaunch explain [--json] [launch|torchrun|deepspeed] [flags] [PROGRAM ...]\n\n"
    "The flags are those of the launch. --json prints one JSON object (docs/explain.md).\n";

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

int print_refusal(const FrontEnd& front_end, const Error& error) {
  print(explain_refusal_json(front_end.name, error.what()));
  return exit_status(error);
}

int explain_plan(const FrontEnd& front_end, std::span<const std::string> arguments, bool as_json) {
  Flags flags = parse_flags(front_end, arguments);
  if (flags.wants_help) {
    return print(std::string(kUsage));
  }
  flags.needs_program = false;
  const auto environment = settings::current_environment();
  const LaunchPlan plan = front_end.plan(flags, environment, detect_host_facts(environment));
  return print(as_json ? explain_json(front_end.name, plan, environment)
                       : explain(plan, environment));
}

}  // namespace

int explain_command(std::span<const std::string> arguments) {
  const bool as_json = !arguments.empty() && arguments.front() == "--json";
  arguments = arguments.subspan(as_json ? 1 : 0);
  const FrontEnd* front_end = arguments.empty() ? nullptr : find_front_end(arguments.front());
  arguments = arguments.subspan(front_end == nullptr ? 0 : 1);
  front_end = front_end == nullptr ? &accelerate_front_end() : front_end;
  try {
    return explain_plan(*front_end, arguments, as_json);
  } catch (const Error& error) {
    if (as_json) {
      return print_refusal(*front_end, error);
    }
    throw;
  }
}

}  // namespace acc::launcher::commands
