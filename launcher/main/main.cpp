#include "acc/base/error.hpp"
#include "acc/launcher/explain.hpp"
#include "acc/launcher/flags.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/launcher/resolve.hpp"
#include "job/job.hpp"
#include "supervision/guardian.hpp"

#include <cstdio>
#include <exception>
#include <string>

namespace {

using namespace acc::launcher;

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

LaunchPlan plan_of(const Flags& flags, const acc::plugins::Environment& environment) {
  return resolve(flags, load_config(flags, environment), environment,
                 detect_host_facts(environment));
}

int run(SupervisorStart start) {
  const Flags flags = parse_flags(start.arguments);
  const auto environment = acc::plugins::current_environment();
  switch (flags.command) {
    case Command::help: return print(help_text());
    case Command::version: return print("acclaunch " ACC_VERSION "\n");
    case Command::environment_table: return print(environment_document());
    case Command::configuration_table: return print(configuration_document());
    case Command::explain: return print(explain(plan_of(flags, environment)));
    case Command::launch: break;
  }
  return run_job(plan_of(flags, environment), environment, std::move(start.guardian));
}

int run_or_say_why_not(SupervisorStart start) {
  try {
    return run(std::move(start));
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "acclaunch: %s\n", error.what());
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "acclaunch: internal error: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_guarded(argc, argv, run_or_say_why_not);
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "acclaunch: %s\n", error.what());
    return acc::exit_status(error);
  }
}
