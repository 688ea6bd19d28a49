// acc-rendezvous: the rendezvous server as a daemon (docs/rendezvous.md).
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "command_line.hpp"
#include "documents.hpp"
#include "options.hpp"
#include "service.hpp"
#include "settings.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace acc::rendezvous;

/// Applies the log format as far as the flag and the variables name it, so that errors in the
/// settings have it too. A wrong word is reported with the other settings.
void set_early_log_format(const CommandLine& line, const acc::plugins::Environment& environment) {
  constexpr auto kKey = "log_format"_key;
  const auto& row = *acc::plugins::find_setting(kKey.name(), kDaemonSettings);
  acc::LogWords words = acc::log_words_from_environment();
  words.format.value = acc::plugins::variable(environment, variable_of(row), words.format.value);
  for (const CommandLine::Value& value : line.values) {
    words.format.value = value.key == kKey.name() ? value.text : words.format.value;
  }
  prepare_log(words);
}

void serve(const acc::plugins::Settings& settings, const acc::plugins::Environment& environment) {
  Options options = to_options(settings);
  set_log_settings(options.log);
  for (const std::string& name : unknown_variables(environment)) {
    acc::logger(acc::Component::rendezvous)
        .warn("{} is not a setting; --help lists all settings", name);
  }
  run_service(std::move(options));
}

void run(const CommandLine& line) {
  const auto environment = acc::plugins::current_environment();
  set_early_log_format(line, environment);
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

void complain(const std::string& reason) {
  acc::notice_lines(acc::Component::rendezvous, acc::LogLevel::critical,
                    "acc-rendezvous: ", reason);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read_command_line(std::vector<std::string>(argv + 1, argv + argc)));
    return 0;
  } catch (const acc::Error& error) {
    complain(error.what());
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    complain("internal error: " + std::string(error.what()));
    return 1;
  }
}
