#include "acc/launcher/command_line.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <filesystem>

namespace acc::launcher {

CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments) {
  const Face* face = find_face(std::filesystem::path(called_as).filename().string());
  if (face != nullptr) {
    return {face, nullptr, true, arguments};
  }
  const std::string_view word = arguments.empty() ? std::string_view() : arguments.front();
  const auto command = std::ranges::find(sub_commands(), word, &SubCommand::name);
  if (command != sub_commands().end()) {
    return {nullptr, &*command, false, arguments.subspan(1)};
  }
  face = find_face(word);
  return face != nullptr ? CommandLine{face, nullptr, true, arguments.subspan(1)}
                         : CommandLine{&accelerate_face(), nullptr, false, arguments};
}

// Only a bare first word can be a misspelled subcommand: after a flag it is a program.
std::string sub_command_meant(const Flags& flags) {
  std::vector<std::string_view> names;
  for (const SubCommand& command : sub_commands()) {
    names.push_back(command.name);
  }
  const std::string nearest =
      flags.own_arguments.empty() ? plugins::closest(flags.program, names) : "";
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
    const std::string nearest = plugins::closest(word, names);
    throw Error(Errc::invalid_argument,
                "help: unknown command " + word +
                    (nearest.empty() ? "; acclaunch help lists all commands"
                                     : "; did you mean " + nearest + "?"));
  }
  return {word, "--help"};
}

}  // namespace acc::launcher
