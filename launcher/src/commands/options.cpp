// SPDX-License-Identifier: Apache-2.0
#include "commands/options.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace acc::launcher::commands {
namespace {

/// Replaces '-' by '_' in the names of long flags. Returns the arguments in reverse order, which is
/// what CLI::App::parse expects.
std::vector<std::string> canonical(std::span<const std::string> arguments) {
  std::vector<std::string> words(arguments.rbegin(), arguments.rend());
  for (std::string& word : words) {
    if (word.size() > 2 && word.starts_with("--")) {
      const auto end =
          word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
      std::replace(word.begin() + 2, end, '-', '_');
    }
  }
  return words;
}

/// Set while visit_options runs a command, which then ends in read_options.
const std::function<void(const CLI::App&)>* visitor = nullptr;

}  // namespace

void visit_options(const SubCommand& command, const std::function<void(const CLI::App&)>& visit) {
  visitor = &visit;
  command.run({});
  visitor = nullptr;
}

bool read_options(CLI::App& app, std::span<const std::string> arguments) {
  if (visitor != nullptr) {
    (*visitor)(app);
    return false;
  }
  try {
    app.parse(canonical(arguments));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    // The name is "acclaunch COMMAND".
    const std::string command = app.get_name().substr(app.get_name().rfind(' ') + 1);
    throw Error(Errc::invalid_argument,
                command + ": " + error.what() + "; see acclaunch help " + command);
  }
  return true;
}

}  // namespace acc::launcher::commands
