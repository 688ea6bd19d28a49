#include "acc/launcher/command_line.hpp"

#include <algorithm>
#include <filesystem>

namespace acc::launcher {

CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments) {
  const Face* face = find_face(std::filesystem::path(called_as).filename().string());
  if (face != nullptr) {
    return {face, nullptr, arguments};
  }
  const std::string_view word = arguments.empty() ? std::string_view() : arguments.front();
  const auto command = std::ranges::find(sub_commands(), word, &SubCommand::name);
  if (command != sub_commands().end()) {
    return {nullptr, &*command, arguments.subspan(1)};
  }
  face = find_face(word);
  return face != nullptr ? CommandLine{face, nullptr, arguments.subspan(1)}
                         : CommandLine{&accelerate_face(), nullptr, arguments};
}

std::string sub_command_meant(const Flags& flags) {
  std::vector<std::string_view> names;
  for (const SubCommand& command : sub_commands()) {
    names.push_back(command.name);
  }
  const std::string nearest =
      flags.own_arguments.empty() ? plugins::closest(flags.program, names) : "";
  return nearest.empty() ? "" : "; did you mean the sub-command " + nearest + "?";
}

std::string sub_commands_help() {
  constexpr std::size_t kColumn = 44;
  std::string text;
  for (const SubCommand& command : sub_commands()) {
    if (!command.help.empty()) {
      std::string line = "  acclaunch " + std::string(command.name) + " ...";
      line.resize(std::max(line.size() + 1, kColumn), ' ');
      text += line + std::string(command.help) + "\n";
    }
  }
  return text;
}

}  // namespace acc::launcher
