// SPDX-License-Identifier: Apache-2.0
#include "commands/options.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/sub_command.hpp"
#include "acc/pages/command_pages.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

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

/// Returns the choices in a type such as `TEXT:{no,bf16}`, as CLI11 prints it.
std::vector<std::string> choices_of(const std::string& type) {
  const auto open = type.find('{');
  const auto close = type.find('}');
  std::vector<std::string> choices;
  if (open != std::string::npos && close != std::string::npos) {
    const std::string words = type.substr(open + 1, close - open - 1);
    for (const std::string_view word : split(words, ',')) {
      choices.emplace_back(word);
    }
  }
  return choices;
}

pages::CommandOption describe_option(const CLI::Option& option) {
  pages::CommandOption described;
  const bool is_operand = option.get_positional();
  for (const std::string& name : option.get_lnames()) {
    described.names.push_back("--" + name);
  }
  for (const std::string& name : option.get_snames()) {
    described.names.push_back("-" + name);
  }
  if (is_operand) {
    described.names = {upper(option.get_name())};
  }
  const std::string type = option.get_type_name();
  described.help = option.get_description();
  if (option.get_items_expected_max() > 0 && !is_operand) {
    described.value = "VALUE";
  }
  described.choices = choices_of(type);
  described.takes_path = described.choices.empty() && type.starts_with("TEXT");
  return described;
}

void describe_options(const CLI::App& app, pages::CommandPage& page) {
  page.text = app.get_description() + "\n";
  pages::OptionGroup operands{"Operands", {}};
  pages::OptionGroup options{"Options", {}};
  for (const CLI::Option* option : app.get_options()) {
    (option->get_positional() ? operands : options).options.push_back(describe_option(*option));
  }
  if (!operands.options.empty()) {
    page.groups.push_back(std::move(operands));
  }
  page.groups.push_back(std::move(options));
}

/// Set while sub_command_page runs a command, which then ends in OptionParser::parse.
pages::CommandPage* described_page = nullptr;

}  // namespace

Option Option::required(bool value) const {
  return Option(option_->required(value));
}

Option Option::needs(Option other) const {
  return Option(option_->needs(other.option_));
}

Option Option::allow_extra_args(bool value) const {
  return Option(option_->allow_extra_args(value));
}

Option Option::check_member(const std::vector<std::string>& words) const {
  return Option(option_->check(CLI::IsMember(words)));
}

Option Option::check_range(int min, int max) const {
  return Option(option_->check(CLI::Range(min, max)));
}

Option Option::check_range(double min, double max) const {
  const CLI::Range range(min, max);  // NaN passes it
  return Option(option_->check(range)->check([range](const std::string& text) {
    return lower(text).find("nan") == std::string::npos ? std::string()
                                                        : "expected " + range.get_description();
  }));
}

Option Option::check_positive() const {
  return Option(option_->check(CLI::PositiveNumber));
}

OptionParser::OptionParser(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {}

OptionParser::~OptionParser() = default;

template <class T>
Option OptionParser::add_option(const std::string& names, T& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

template Option OptionParser::add_option(const std::string&, double&, const std::string&);
template Option OptionParser::add_option(const std::string&, int&, const std::string&);
template Option OptionParser::add_option(const std::string&, std::filesystem::path&,
                                         const std::string&);
template Option OptionParser::add_option(const std::string&, std::optional<int>&,
                                         const std::string&);
template Option OptionParser::add_option(const std::string&, std::string&, const std::string&);
template Option OptionParser::add_option(const std::string&, std::vector<std::string>&,
                                         const std::string&);

Option OptionParser::add_flag(const std::string& names, bool& value, const std::string& help) {
  return Option(app_->add_flag(names, value, help));
}

void OptionParser::allow_extras() {
  app_->allow_extras();
}

std::vector<std::string> OptionParser::remaining() const {
  return app_->remaining();
}

void OptionParser::parse(std::span<const std::string> arguments) {
  if (described_page != nullptr) {
    describe_options(*app_, *described_page);
    throw HelpShown();
  }
  try {
    app_->parse(canonical(arguments));
    for (const CLI::Option* const option : app_->get_options()) {
      const auto& values = option->results();
      if (option->get_positional() && std::ranges::find(values, "") != values.end()) {
        throw CLI::ValidationError(upper(option->get_name()), "is empty");
      }
    }
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    throw HelpShown();
  } catch (const CLI::ParseError& error) {
    const std::string name = app_->get_name();
    const std::string command = name.substr(name.rfind(' ') + 1);
    throw Error(Errc::invalid_argument,
                command + ": " + error.what() + "; see acclaunch help " + command);
  }
}

pages::CommandPage sub_command_page(const SubCommand& command) {
  pages::CommandPage page;
  described_page = &page;
  try {
    command.run({});
  } catch (const HelpShown&) {
    described_page = nullptr;
  }
  page.name = "acclaunch " + std::string(command.name);
  page.summary = command.help;
  return page;
}

}  // namespace acc::launcher::commands
