// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

// CLI11 has only headers, which take seconds to compile. Only options.cpp includes them.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace acc::launcher {
struct SubCommand;
}
namespace acc::pages {
struct CommandPage;
}

namespace acc::launcher::commands {

/// A declared option. The OptionParser must outlive it. The functions do what CLI::Option's
/// do, with CLI11's validators; each returns the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required(bool value = true) const;
  Option needs(Option other) const;
  Option allow_extra_args(bool value) const;
  Option check_member(const std::vector<std::string>& words) const;
  Option check_range(int min, int max) const;
  Option check_range(double min, double max) const;
  Option check_positive() const;

 private:
  CLI::Option* option_;
};

/// Reads the arguments of a sub-command. Long flags may be spelled with `-` or `_`; declare them
/// with `_`. The variables of the options must outlive the parser.
class OptionParser {
 public:
  /// The name is "acclaunch COMMAND".
  OptionParser(const std::string& description, const std::string& name);
  ~OptionParser();

  /// `names`: "--flag", "-f,--flag", or "word" for an operand. options.cpp lists the types.
  template <class T>
  Option add_option(const std::string& names, T& value, const std::string& help);
  Option add_flag(const std::string& names, bool& value, const std::string& help);

  /// Collects undeclared words and flags, instead of refusing them.
  void allow_extras();
  [[nodiscard]] std::vector<std::string> remaining() const;

  /// Sets the variables. Throws HelpShown after printing the help if --help was given, and
  /// Error(invalid_argument).
  void parse(std::span<const std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

/// Returns the description of a sub-command, with the options that it declares. Calls the command,
/// whose OptionParser::parse then throws HelpShown. The command must use an OptionParser.
pages::CommandPage sub_command_page(const SubCommand& command);

}  // namespace acc::launcher::commands
