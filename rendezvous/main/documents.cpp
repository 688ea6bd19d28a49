// SPDX-License-Identifier: Apache-2.0
#include "documents.hpp"

#include "acc/plugins/document_writer.hpp"
#include "settings.hpp"

#include <algorithm>

namespace acc::rendezvous {
namespace {

using plugins::Node;
using plugins::SettingRow;
using plugins::Type;

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

}  // namespace

std::string config_text(const plugins::Settings& settings) {
  constexpr std::size_t kColumn = 34;  // where the comments begin
  std::string text;
  for (const SettingRow& row : settings.table()) {
    if (!row.in_file) {
      continue;
    }
    const Node entry = Node::map({{std::string(row.key), value_of(row, settings.text(row))}});
    std::string line = plugins::to_yaml(entry);
    line.pop_back();  // to_yaml ends in a newline
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    text += line + "# " + plugins::describe(settings.source(row)) + "\n";
  }
  return text;
}

std::string help_text() {
  std::string text =
      "usage: acc-rendezvous [FLAGS]\n\n"
      "Rendezvous server for distributed training: serves PyTorch's TCPStore protocol and forms\n"
      "the rounds of elastic jobs. A setting is taken from its flag, else from the environment\n"
      "variable ACC_RENDEZVOUS_<NAME>, else from the file, else it is the default in brackets.\n\n";
  for (const SettingRow& row : kDaemonFlags.table) {
    text += plugins::help_entry(kDaemonFlags, row);
  }
  return text + "\n  --help, -h    --version\n";
}

std::string settings_table_text() {
  std::string text = "| setting | value | default | |\n|---|---|---|---|\n";
  for (const SettingRow& row : kDaemonSettings) {
    text += "| " + code(row.key) + " | " + plugins::expected_value(row) + " | " +
            code(row.fallback) + " | " + std::string(row.help) + " |\n";
  }
  return text;
}

}  // namespace acc::rendezvous
