// acc-rendezvous: the rendezvous server as a daemon (docs/rendezvous.md).
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/plugins/faults.hpp"
#include "command_line.hpp"
#include "documents.hpp"
#include "options.hpp"
#include "service.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace acc::rendezvous;

void serve(const acc::plugins::Settings& settings, const acc::plugins::Environment& environment) {
  for (const std::string& name : unknown_variables(environment)) {
    acc::logger("rendezvous")->warn("{} is not a setting; --help lists all settings", name);
  }
  run_service(to_options(settings));
}

void run(const CommandLine& line) {
  const auto environment = acc::plugins::current_environment();
  switch (line.action) {
    case Action::help: std::fputs(help_text().c_str(), stdout); break;
    case Action::version: std::puts("acc-rendezvous " ACC_VERSION); break;
    case Action::print_settings_table: std::fputs(settings_table_text().c_str(), stdout); break;
    case Action::print_config:
      std::fputs(acc::printable_lines(config_text(read_settings(line, environment))).c_str(),
                 stdout);
      break;
    case Action::serve: serve(read_settings(line, environment), environment); break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read_command_line(std::vector<std::string>(argv + 1, argv + argc)));
    return 0;
  } catch (const acc::Error& error) {
    const std::string reason = acc::printable_lines(error.what());
    std::fputs(acc::plugins::with_head("acc-rendezvous: ", reason).c_str(), stderr);
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "acc-rendezvous: internal error: %s\n",
                 acc::printable_lines(error.what()).c_str());
    return 1;
  }
}
