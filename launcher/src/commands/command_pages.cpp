// SPDX-License-Identifier: Apache-2.0
// Descriptions of the front ends and sub-commands, for completions and manual pages; and the
// command that prints the manual pages.
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/front_end.hpp"
#include "acc/launcher/sub_command.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "host/own_variables.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace acc::launcher::commands {
namespace {

using pages::Candidate;
using pages::CommandPage;

constexpr std::array kFrontEnds = {
    std::pair{"launch", "start a distributed training program and supervise it"},
    std::pair{"torchrun", "start a distributed training program with torchrun's flags"},
    std::pair{"deepspeed", "start a distributed training program with DeepSpeed's flags"},
    std::pair{"test", "run a built-in training program that tests the launch"},
    std::pair{"doctor", "check the machines of a job and their network"}};

constexpr std::string_view kExitStatus =
    "0 success; 2 bad input: a flag, a configuration file, a program; 1 a machine of the job was\n"
    "lost; 124 timeout; 126 or 127 the program cannot be executed or does not exist; 128+n ended\n"
    "by signal n. Otherwise the exit status of the worker that made the job fail.\n";

CommandPage front_end_page(const FrontEnd& front_end, std::string summary) {
  CommandPage page;
  page.name = "acclaunch" +
              (&front_end == &accelerate_front_end() ? "" : " " + std::string(front_end.name));
  page.summary = std::move(summary);
  page.text = front_end.usage;
  for (const auto& [title, rows] : flag_groups(front_end)) {
    pages::OptionGroup group{title.empty() || title == "Launch" ? "Options" : title, {}};
    for (const settings::SettingRow* row : rows) {
      group.options.push_back(pages::describe_flag(front_end, *row));
    }
    page.groups.push_back(std::move(group));
  }
  page.groups.push_back({"Help",
                         {{{"--help", "-h"}, "", {}, false, "print all flags"},
                          {{"--version"}, "", {}, false, "print the version"}}});
  page.takes_program = true;
  page.abbreviates = front_end.abbreviates;
  return page;
}

CommandPage explain_page(const SubCommand& command) {
  CommandPage page = front_end_page(accelerate_front_end(), std::string(command.help));
  page.name = "acclaunch explain";
  page.text =
      "Prints every setting of a launch with its value and its source, and what would be started. "
      "Starts nothing.\n\n"
      "  acclaunch explain [--json] [launch|torchrun|deepspeed] [flags] [PROGRAM ...]\n\n"
      "The flags are those of the launch.\n";
  page.groups.erase(page.groups.begin(), page.groups.end() - 1);
  page.groups.front() = {"Options", {{{"--json"}, "", {}, false, "print one JSON object"}}};
  return page;
}

/// Replaces the code marks and links of a cell of docs/environment.md by plain text.
std::string plain(std::string_view cell) {
  std::string text(cell);
  std::erase(text, '`');
  for (auto open = text.find('['); open != std::string::npos; open = text.find('[', open + 1)) {
    const auto middle = text.find("](", open);
    const auto close = text.find(')', middle);
    if (middle == std::string::npos || close == std::string::npos) {
      break;
    }
    text.erase(middle, close + 1 - middle);
    text.erase(open, 1);
  }
  return text;
}

/// Returns the sections that only the page of acclaunch itself has.
std::vector<pages::ManualSection> main_sections() {
  std::string commands;
  for (const Candidate& command : command_names()) {
    commands += "acclaunch-" + command.word + "(1): " + command.help + "\n\n";
  }
  std::string variables;
  for (const auto& [name, use] : host::own_variables()) {
    variables += std::string(name) + ": " + plain(use) + "\n\n";
  }
  return {{"COMMANDS", commands},
          {"EXIT STATUS", std::string(kExitStatus)},
          {"ENVIRONMENT", variables},
          {"SEE ALSO", "acc-rendezvous(8), and the documentation in share/acclaunch/docs\n"}};
}

}  // namespace

std::vector<Candidate> command_names() {
  std::vector<Candidate> names;
  names.reserve(kFrontEnds.size() + sub_commands().size());
  for (const auto& [name, summary] : kFrontEnds) {
    names.push_back({name, summary});
  }
  for (const SubCommand& command : sub_commands()) {
    if (!command.help.empty()) {
      names.push_back({std::string(command.name), std::string(command.help)});
    }
  }
  return names;
}

CommandPage command_page(std::string_view name) {
  for (const auto& [front_end, summary] : kFrontEnds) {
    if (front_end == name) {
      return front_end_page(*find_front_end(name), summary);
    }
  }
  const auto command = std::ranges::find(sub_commands(), name, &SubCommand::name);
  if (command == sub_commands().end() || command->help.empty()) {
    throw Error(Errc::invalid_argument,
                "manual-page: unknown command " + printable(std::string(name)));
  }
  return name == "explain" ? explain_page(*command) : sub_command_page(*command);
}

// manual-page NAME: prints one page. manual-page: prints the names of all pages.
int manual_page_command(std::span<const std::string> arguments) {
  if (arguments.empty()) {
    for (const Candidate& command : command_names()) {
      std::printf("%s\n", command.word.c_str());
    }
    return 0;
  }
  const CommandPage page = command_page(arguments.front());
  const std::array see_also = {
      pages::ManualSection{"EXIT STATUS", std::string(kExitStatus)},
      pages::ManualSection{"SEE ALSO", "acclaunch(1), docs/commands.md\n"}};
  const std::vector<pages::ManualSection> sections =
      arguments.front() == "launch"
          ? main_sections()
          : std::vector<pages::ManualSection>(see_also.begin(), see_also.end());
  std::fputs(
      pages::manual_page(page, 1, "acclaunch " ACC_VERSION, ACC_RELEASE_DATE, sections).c_str(),
      stdout);
  return 0;
}

}  // namespace acc::launcher::commands
