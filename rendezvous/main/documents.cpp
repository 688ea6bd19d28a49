// SPDX-License-Identifier: Apache-2.0
#include "documents.hpp"

#include "acc/documents/document_writer.hpp"
#include "acc/pages/command_pages.hpp"
#include "commands.hpp"
#include "settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace acc::rendezvous {
namespace {

using documents::Node;
using settings::SettingRow;
using settings::Type;

Node value_of(const SettingRow& row, const std::string& text) {
  if (text.empty()) {
    return {};
  }
  return row.type == Type::integer ? Node::number(text) : Node::string(text);
}

/// Formats a cell of a Markdown table as code.
std::string code(std::string_view text) {
  return text.empty() ? "" : "`" + std::string(text) + "`";
}

constexpr std::string_view kDescription =
    "Rendezvous server for distributed training: serves PyTorch's TCPStore protocol and forms\n"
    "the rounds of elastic jobs. A setting is taken from its flag, else from the environment\n"
    "variable ACC_RENDEZVOUS_<NAME>, else from the file, else it is the default.\n";

pages::CommandPage daemon_page() {
  pages::CommandPage page{"acc-rendezvous",
                          "rendezvous server for distributed training",
                          std::string(kDescription),
                          {{"Options", {}}}};
  for (const SettingRow& row : kDaemonFlags.table) {
    page.groups.front().options.push_back(pages::describe_flag(kDaemonFlags, row));
  }
  page.groups.front().options.push_back({{"--help", "-h"}, "", {}, false, "print all flags"});
  page.groups.front().options.push_back({{"--version"}, "", {}, false, "print the version"});
  return page;
}

}  // namespace

std::string config_text(const settings::Settings& settings) {
  constexpr std::size_t kColumn = 34;  // where the comments begin
  std::string text;
  for (const SettingRow& row : settings.table()) {
    if (!row.in_file) {
      continue;
    }
    const Node entry = Node::map({{std::string(row.key), value_of(row, settings.text(row))}});
    std::string line = documents::to_yaml(entry);
    line.pop_back();  // to_yaml ends in a newline
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    text += line + "# " + settings::describe(settings.source(row)) + "\n";
  }
  return text;
}

std::string help_text() {
  std::string text = "usage: acc-rendezvous [FLAGS]\n";
  for (const Command& command : commands()) {
    text += fmt::format("       acc-rendezvous {} {}\n           {}\n", command.name, command.usage,
                        command.help);
  }
  text += "\n" + std::string(kDescription) + "\n";
  for (const SettingRow& row : kDaemonFlags.table) {
    text += settings::help_entry(kDaemonFlags, row);
  }
  return text + "\n  --help, -h    --version\n";
}

std::string settings_table_text() {
  std::string text = "| setting | value | default | |\n|---|---|---|---|\n";
  for (const SettingRow& row : kDaemonSettings) {
    text += "| " + code(row.key) + " | " + settings::expected_value(row) + " | " +
            code(row.fallback) + " | " + std::string(row.help) + " |\n";
  }
  return text;
}

std::string candidates_text(std::span<const std::string> words) {
  return pages::candidate_lines(pages::complete_options(daemon_page(), words));
}

std::string manual_page_text() {
  const std::array sections = {
      pages::ManualSection{
          "FILES",
          "/etc/default/acc-rendezvous: variables ACC_RENDEZVOUS_<NAME> of the system service\n"},
      pages::ManualSection{"EXIT STATUS",
                           "0 ended by SIGTERM or SIGINT; 1 it cannot listen; 2 bad input\n"},
      pages::ManualSection{"SEE ALSO", "acclaunch(1), systemd.socket(5)\n"}};
  return pages::manual_page(daemon_page(), 8, "acclaunch " ACC_VERSION, ACC_RELEASE_DATE, sections);
}

}  // namespace acc::rendezvous
