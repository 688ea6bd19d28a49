// SPDX-License-Identifier: Apache-2.0
// acc-rendezvous: the rendezvous server as a daemon (docs/rendezvous.md).
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/pages/command_pages.hpp"
#include "commands.hpp"
#include "documents.hpp"
#include "options.hpp"
#include "service.hpp"
#include "settings.hpp"

#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace acc::rendezvous;

/// Applies the log format as far as the flag and the variables name it, so that errors in the
/// settings have it too. A wrong word is reported with the other settings.
void set_early_log_format(const acc::settings::ParsedFlags& flags,
                          const acc::settings::Environment& environment) {
  constexpr auto kKey = "log_format"_key;
  const auto& row = *acc::settings::find_setting(kKey.name(), kDaemonSettings);
  acc::LogWords words = acc::log_words_from_environment();
  words.format.value = acc::settings::variable(environment, variable_of(row), words.format.value);
  if (const auto* given = flags.find(kKey)) {
    words.format.value = given->text;
  }
  prepare_log(words);
}

void serve(const acc::settings::ParsedFlags& flags, const acc::settings::Environment& environment) {
  const auto read = [&] { return to_options(read_settings(flags, environment), environment); };
  Options options = read();
  set_log_settings(options.log);
  for (const std::string& name : unknown_variables(environment)) {
    acc::logger(acc::Component::rendezvous)
        .warn("{} is not a setting; --help lists all settings", name);
  }
  run_service(std::move(options), read);
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

void run(const acc::settings::ParsedFlags& flags) {
  const auto environment = acc::settings::current_environment();
  set_early_log_format(flags, environment);
  if (flags.wants_help) {
    print(help_text());
  } else if (flags.wants_version) {
    print("acc-rendezvous " ACC_VERSION "\n");
  } else if (flags.find("print_settings_table"_key) != nullptr) {
    print(settings_table_text());
  } else if (flags.find("print_manual_page"_key) != nullptr) {
    print(manual_page_text());
  } else if (const auto* shell = flags.find("print_completion"_key)) {
    print(acc::pages::completion_script("acc-rendezvous", shell->text));
  } else if (flags.find("print_config"_key) != nullptr) {
    print(acc::printable_lines(config_text(read_settings(flags, environment))));
  } else {
    serve(flags, environment);
  }
}

void complain(const std::string& reason) {
  acc::notice_lines(acc::Component::rendezvous, acc::LogLevel::critical,
                    "acc-rendezvous: ", reason);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() > 1 && arguments.front() == "complete-words") {  // the completion script
      print(candidates_text(std::span(arguments).subspan(1)));
      return 0;
    }
    if (const Command* command = find_command(arguments)) {
      return command->run(std::span(arguments).subspan(1));
    }
    run(acc::settings::parse_flags(kDaemonFlags, arguments));
    return 0;
  } catch (const acc::Error& error) {
    complain(error.what());
    return acc::exit_status(error);
  } catch (const std::exception& error) {
    complain("internal error: " + std::string(error.what()));
    return 1;
  }
}
