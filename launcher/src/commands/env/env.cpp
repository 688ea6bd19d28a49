// SPDX-License-Identifier: Apache-2.0
// acclaunch env: prints the facts that a bug report needs. A fact that cannot be found out is
// printed as "Not found"; the command does not fail because of it.
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/default_config.hpp"
#include "acc/plugins/document.hpp"
#include "commands/commands.hpp"
#include "commands/env/facts.hpp"
#include "commands/options.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using plugins::Node;

/// Formats a node on one line, in YAML's flow style.
std::string inline_text(const Node& node) {
  std::string text;
  for (const auto& [key, value] : node.entries) {
    text += (text.empty() ? "" : ", ") + key + ": " + inline_text(value);
  }
  for (const Node& item : node.items) {
    text += (text.empty() ? "" : ", ") + inline_text(item);
  }
  switch (node.kind) {
    case Node::Kind::null: return "null";
    case Node::Kind::list: return "[" + text + "]";
    case Node::Kind::map: return "{" + text + "}";
    default: return node.text;
  }
}

std::string lines_of(const Facts& facts, const char* indent = "") {
  std::string text;
  for (const auto& [name, value] : facts) {
    text += std::string(indent) + "- " + printable(name) + ": " + printable(value) + "\n";
  }
  return text;
}

/// Returns the keys of the configuration file that --config_file names, or of the default one. If
/// the default file cannot be parsed, its error is printed, since the report may be about it.
std::string config_text(const std::string& config_file, const plugins::Environment& environment) {
  const fs::path path =
      config_file.empty() ? default_config_path(environment) : fs::path(config_file);
  std::error_code none;
  if (config_file.empty() && !fs::exists(path, none)) {
    return "- Configuration: Not found\n";
  }
  Facts entries;
  try {
    for (const auto& [key, node] : plugins::load_document(path).root.entries) {
      entries.emplace_back(key, inline_text(node));
    }
  } catch (const Error& error) {
    if (!config_file.empty()) {
      throw;
    }
    return "- Configuration: " + printable_lines(error.what()) + "\n";
  }
  return "- Configuration: " + path.string() + "\n" + lines_of(entries, "\t");
}

}  // namespace

int env_command(std::span<const std::string> arguments) {
  OptionParser parser("Prints version, machine and configuration, for a bug report.",
                      "acclaunch env");
  std::string config_file;
  parser.add_option("--config_file", config_file,
                    "configuration to show; default: $HF_HOME/accelerate/default_config.yaml");
  parser.parse(arguments);
  const auto environment = plugins::current_environment();
  const HostFacts host = detect_host_facts(environment);
  const Facts variables = variable_facts(environment);
  const std::string text = "Copy this into your report:\n\n" + lines_of(build_facts()) +
                           lines_of(system_facts(host)) + lines_of(gpu_facts(host)) +
                           lines_of(python_facts(environment)) +
                           "- Variables: " + (variables.empty() ? " none" : "") + "\n" +
                           lines_of(variables, "\t") + config_text(config_file, environment);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
