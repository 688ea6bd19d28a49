// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"
#include "acc/pages/command_pages.hpp"

#include <algorithm>

namespace acc::pages {
namespace {

/// Escapes text for roff: backslashes, dashes that users type, and a first character that would
/// begin a request.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '~': result += "\\(ti"; break;
      case '^': result += "\\(ha"; break;
      case '`': result += "\\(ga"; break;
      default: result += c;
    }
  }
  return result.starts_with('.') || result.starts_with('\'') ? "\\&" + result : result;
}

/// Escapes an argument of a request that stands in quotation marks.
std::string quoted(std::string_view text) {
  std::string result = escaped(text);
  for (auto at = result.find('"'); at != std::string::npos; at = result.find('"', at + 4)) {
    result.replace(at, 1, "\\(dq");
  }
  return "\"" + result + "\"";
}

bool is_indented(std::string_view line) {
  return line.starts_with(' ');
}

/// Formats paragraphs that are separated by empty lines. Indented lines keep their breaks.
std::string paragraphs(const std::string& text) {
  std::string result;
  bool begins = true;    // the next line begins a paragraph
  bool is_code = false;  // within lines that keep their breaks
  const auto end_code = [&] {
    result += is_code ? ".EE\n.RE\n" : "";
    is_code = false;
  };
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty()) {
      end_code();
      begins = true;
      continue;
    }
    if (begins && !result.empty()) {
      result += ".PP\n";
    }
    if (is_indented(line) && !is_code) {
      result += ".RS\n.EX\n";
      is_code = true;
    } else if (!is_indented(line)) {
      end_code();
    }
    begins = false;
    result += escaped(is_code ? line.substr(std::min<std::size_t>(2, line.size())) : line) + "\n";
  }
  end_code();
  return result;
}

std::string option_entry(const CommandOption& option) {
  std::string text = ".TP\n";
  for (const std::string& name : option.names) {
    text += (&name == &option.names.front() ? "" : ", ") + ("\\fB" + escaped(name) + "\\fR");
  }
  if (!option.value.empty()) {
    text += " \\fI" + escaped(option.value) + "\\fR";
  }
  text += "\n" + escaped(option.help);
  const bool lists_choices = std::ranges::all_of(option.choices, [&](const std::string& choice) {
    return option.help.find(choice) != std::string::npos;
  });
  if (!lists_choices) {
    text += "\n(";
    for (const std::string& choice : option.choices) {
      const bool is_last = &choice == &option.choices.back();
      text += escaped(choice) + (is_last                                 ? ""
                                 : &choice + 1 == &option.choices.back() ? " or "
                                                                         : ", ");
    }
    text += ")";
  }
  return text + "\n";
}

}  // namespace

std::string manual_page(const CommandPage& page, int section, std::string_view version,
                        std::string_view date, std::span<const ManualSection> more) {
  std::string name = page.name;
  std::ranges::replace(name, ' ', '-');
  std::string text = ".\\\" Generated from the program's table of settings.\n.TH " + upper(name) +
                     " " + std::to_string(section) + " " + std::string(date) + " " +
                     quoted(version) + "\n.SH NAME\n" + escaped(name) + " \\- " +
                     escaped(page.summary) + "\n.SH DESCRIPTION\n" + paragraphs(page.text);
  for (const auto& [title, options] : page.groups) {
    text += ".SH " + quoted(upper(title)) + "\n";
    for (const CommandOption& option : options) {
      text += option_entry(option);
    }
  }
  for (const auto& [title, words] : more) {
    text += ".SH " + quoted(title) + "\n" + paragraphs(words);
  }
  return text;
}

}  // namespace acc::pages
