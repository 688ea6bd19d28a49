// SPDX-License-Identifier: Apache-2.0
#include "acc/launcher/command_line.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <algorithm>
#include <filesystem>

namespace acc::launcher {
namespace {

/// Flags on the first page of --help.
constexpr std::string_view kUsualFlags =
    "config_file num_processes use_cpu mixed_precision use_fsdp use_deepspeed num_machines "
    "machine_rank main_process_ip main_process_port hostfile max_restarts log_dir module";

}  // namespace

CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments) {
  const FrontEnd* front_end = find_front_end(std::filesystem::path(called_as).filename().string());
  if (front_end != nullptr) {
    return {front_end, nullptr, true, arguments};
  }
  const std::string_view word = arguments.empty() ? std::string_view() : arguments.front();
  const auto command = std::ranges::find(sub_commands(), word, &SubCommand::name);
  if (command != sub_commands().end()) {
    return {nullptr, &*command, false, arguments.subspan(1)};
  }
  front_end = find_front_end(word);
  return front_end != nullptr ? CommandLine{front_end, nullptr, true, arguments.subspan(1)}
                              : CommandLine{&accelerate_front_end(), nullptr, false, arguments};
}

// Only a bare first word can be a misspelled subcommand: after a flag it is a program.
std::string sub_command_meant(const Flags& flags) {
  std::vector<std::string_view> names;
  for (const SubCommand& command : sub_commands()) {
    names.push_back(command.name);
  }
  const std::string nearest =
      flags.own_arguments.empty() ? settings::closest(flags.program, names) : "";
  return nearest.empty() ? "" : "; did you mean the sub-command " + nearest + "?";
}

std::vector<std::string> with_help_as_flag(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") {
    return arguments;
  }
  if (arguments.size() == 1) {
    return {"--help"};
  }
  const std::string& word = arguments[1];
  std::vector<std::string_view> names = {"launch", "torchrun", "deepspeed", "test", "doctor"};
  for (const SubCommand& command : sub_commands()) {
    names.push_back(command.name);
  }
  if (std::ranges::find(names, word) == names.end()) {
    const std::string nearest = settings::closest(word, names);
    throw Error(Errc::invalid_argument, "help: unknown command " + word +
                                            (nearest.empty() ? "; acclaunch help lists all commands"
                                                             : "; did you mean " + nearest + "?"));
  }
  return {word, "--help"};
}

std::string first_help_page() {
  const FrontEnd& front_end = accelerate_front_end();
  std::string text(front_end.usage);
  text += "\nFlags that most launches need\n";
  for (const std::string_view key : split(kUsualFlags, ' ')) {
    text += settings::help_entry(
        front_end, *std::ranges::find(front_end.table, key, &settings::SettingRow::key));
  }
  text += "\nOther commands\n";
  for (const SubCommand& command : sub_commands()) {
    if (!command.help.empty()) {
      std::string line = "  " + std::string(command.name);
      line.resize(std::max(line.size() + 1, settings::kHelpColumn), ' ');
      text += line + std::string(command.help) + "\n";
    }
  }
  return text +
         "\n  acclaunch help launch       all flags, by subject\n"
         "  acclaunch help COMMAND      the flags of another command\n"
         "  acclaunch --version\n";
}

}  // namespace acc::launcher
