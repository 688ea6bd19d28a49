// SPDX-License-Identifier: Apache-2.0
// The tables in docs/environment.md and docs/configuration.md, made from the settings table and the
// lists of variables. The commands that print them are not listed in --help.
#include "acc/documents/deepspeed_json.hpp"
#include "acc/launcher/explain.hpp"
#include "acc/launcher/front_end.hpp"
#include "commands/commands.hpp"
#include "host/own_variables.hpp"

#include <cstdio>
#include <initializer_list>

namespace acc::launcher {
namespace {

using settings::SettingRow;

/// Formats a table cell as code; '|' must be escaped in a Markdown table.
std::string code(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  }
  return text.empty() ? "" : "`" + escaped + "`";
}

/// A table in Markdown.
class Table {
 public:
  explicit Table(std::initializer_list<std::string_view> titles) {
    add(titles);
    text_ += "|";
    for (std::size_t i = 0; i < titles.size(); ++i) {
      text_ += "---|";
    }
    text_ += "\n";
  }
  void add(std::initializer_list<std::string_view> cells) {
    text_ += "|";
    for (const std::string_view cell : cells) {
      text_ += " ";
      text_ += cell;
      text_ += " |";
    }
    text_ += "\n";
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string_view export_of(const SettingRow& row) {
  switch (row.exported) {
    case settings::Export::always: return "always";
    case settings::Export::given: return "when given";
    case settings::Export::when_true: return "when true";
    case settings::Export::never: break;
  }
  return "";
}

int print_tables(const std::vector<std::string>& tables) {
  for (const std::string& table : tables) {
    std::printf("%s\n", table.c_str());
  }
  return 0;
}

}  // namespace

std::vector<std::string> environment_tables() {
  Table own({"variable", "purpose"});
  for (const auto& [name, use] : host::own_variables()) {
    own.add({code(name), use});
  }
  Table managers({"job manager", "variables"});
  for (const auto& [manager, names] : host::manager_variables()) {
    std::string cell;
    for (const std::string_view name : split(names, ' ')) {
      cell += (cell.empty() ? "" : " ") + code(name);
    }
    managers.add({manager, cell});
  }
  Table settings({"setting", "Accelerate's variable", "set", "our variable"});
  for (const SettingRow& row : settings::settings_table()) {
    if (settings::reaches_workers(row)) {
      settings.add({code(row.key), code(row.environment), export_of(row),
                    code(settings::own_variable(row))});
    }
  }
  return {own.text(), managers.text(), settings.text()};
}

std::vector<std::string> configuration_tables() {
  Table settings(
      {"setting", "flag", "YAML block", "DeepSpeed JSON", "value", "default", "meaning"});
  for (const SettingRow& row : accelerate_front_end().table) {
    const std::string unit = row.unit.empty() ? "" : " (" + std::string(row.unit) + ")";
    settings.add({code(row.key), row.flag == settings::Flag::none ? "" : "yes",
                  settings::is_top_level(row) ? "top level" : code(settings::block_of(row)),
                  code(row.json), settings::expected_value(row) + unit, code(row.fallback),
                  row.help});
  }
  Table foreign({"key", "value without effect", "libacc_runtime"});
  for (const auto& [path, fallback, is_refused] : documents::foreign_deepspeed_keys()) {
    foreign.add({code(path), code(fallback), is_refused ? "rejects it" : ""});
  }
  return {settings.text(), foreign.text()};
}

int commands::environment_table_command(std::span<const std::string> /*arguments*/) {
  return print_tables(environment_tables());
}

int commands::configuration_table_command(std::span<const std::string> /*arguments*/) {
  return print_tables(configuration_tables());
}

}  // namespace acc::launcher
