// SPDX-License-Identifier: Apache-2.0
// acclaunch config: writes Accelerate's configuration file from the user's answers, with defaults
// (--default), or from an older file (--update).
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/written_file.hpp"
#include "acc/documents/accelerate_config.hpp"
#include "acc/documents/document_writer.hpp"
#include "acc/launcher/host_facts.hpp"
#include "commands/commands.hpp"
#include "commands/config/questionnaire.hpp"
#include "commands/options.hpp"
#include "host/own_variables.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;

struct ConfigOptions {
  std::string config_file;  ///< empty: Accelerate's default place
  std::string mixed_precision = "no";
  bool makes_default = false;
  bool updates = false;
  bool overwrites = false;
};

ConfigOptions read_config_options(std::span<const std::string> arguments) {
  ConfigOptions options;
  OptionParser parser("Asks questions and writes the configuration file of a launch.",
                      "acclaunch config");
  parser.add_option("--config_file", options.config_file,
                    "file to write; default: $HF_HOME/accelerate/default_config.yaml");
  parser
      .add_option("--mixed_precision", options.mixed_precision, "with --default: no, fp16 or bf16")
      .check_member({"no", "fp16", "bf16"});
  parser.add_flag("--default", options.makes_default,
                  "ask nothing: one process per GPU, or one on the CPU");
  parser.add_flag("--update", options.updates,
                  "ask nothing: add the keys that an older file lacks, with their defaults");
  parser.add_flag("--overwrite", options.overwrites, "with --default: replace an existing file");
  std::string word;
  parser.add_option("action", word, "default or update: the same as --default, --update")
      .check_member({"default", "update"});
  parser.parse(arguments);
  options.makes_default |= word == "default";
  options.updates |= word == "update";
  if (options.makes_default && options.updates) {
    throw Error(Errc::invalid_argument, "config: default and update exclude each other");
  }
  return options;
}

/// Returns the path of the file to write. Throws Error(not_found) if its folder does not exist; the
/// default folder is created instead.
fs::path file_to_write(const ConfigOptions& options, const settings::Environment& environment) {
  std::error_code error;
  if (!options.config_file.empty()) {
    const fs::path folder = folder_of(options.config_file);
    if (!fs::is_directory(folder, error)) {  // checked before the first question
      throw Error(Errc::not_found, "cannot write " + options.config_file + ": the folder " +
                                       folder.string() + " does not exist");
    }
    check_replaceable(options.config_file);
    return options.config_file;
  }
  fs::path path = default_config_path(environment);
  fs::create_directories(path.parent_path(), error);
  if (error) {
    throw Error(Errc::config, "cannot create the folder " + path.parent_path().string() + ": " +
                                  error.message() + "; choose another file with --config_file");
  }
  check_replaceable(path);
  return path;
}

documents::Node default_config(const ConfigOptions& options,
                               const settings::Environment& environment) {
  const HostFacts facts = detect_host_facts(environment);
  return default_config_document(options.mixed_precision,
                                 static_cast<int>(facts.visible_gpus.size()));
}

documents::Node updated_config(const fs::path& path) {
  const documents::Document document = documents::load_document(path);
  settings::Settings checked;
  documents::apply_accelerate_config(document, checked);  // throws for invalid keys and values
  return updated_config_document(document);
}

}  // namespace

int config_command(std::span<const std::string> arguments) {
  const ConfigOptions options = read_config_options(arguments);
  const auto environment = settings::current_environment();
  const fs::path path = file_to_write(options, environment);
  documents::Node config;
  if (options.makes_default) {
    config = default_config(options, environment);
  } else if (options.updates) {
    config = updated_config(path);
  } else {
    config = config_document(ask_all(), host::value_of(environment, host::variables.home, "/"));
  }
  // Like Accelerate, only `default` protects an existing file.
  const bool keeps_other_file = options.makes_default && !options.overwrites;
  write_file(path, documents::to_text(config, path),
             keeps_other_file ? Overwrite::no : Overwrite::yes);
  std::printf("%s %s\n", options.updates ? "updated" : "wrote", path.c_str());
  return 0;
}

}  // namespace acc::launcher::commands
