// SPDX-License-Identifier: Apache-2.0
// acclaunch convert-config and to-fsdp2: convert configuration files between FSDP 1, FSDP 2 and
// DeepSpeed. The conversion itself is in plugins; notes about settings that change go to stderr.
#include "acc/documents/convert_config.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/log.hpp"
#include "acc/documents/document_writer.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using documents::Conversion;

struct ConvertOptions {
  fs::path input;
  fs::path output;  ///< empty: stdout
  std::string form;
  int gpus_per_machine = 0;
  bool overwrite = false;
};

ConvertOptions read_convert_config(std::span<const std::string> arguments) {
  ConvertOptions options;
  OptionParser parser(
      "Converts an FSDP configuration to DeepSpeed, or the reverse, and lists the settings that "
      "are lost or changed.",
      "acclaunch convert-config");
  parser
      .add_option("input", options.input,
                  "Accelerate's YAML or JSON file, or DeepSpeed's JSON file")
      .required();
  parser.add_option("-o,--output_file", options.output, "file to write; default: stdout");
  parser.add_option(
      "--to", options.form,
      "fsdp, fsdp2, deepspeed or deepspeed-json; default: deepspeed for an FSDP file, "
      "else fsdp");
  parser
      .add_option(
          "--gpus_per_machine", options.gpus_per_machine,
          "GPUs per machine, needed for HYBRID_SHARD; default: num_processes / num_machines "
          "of the file")
      .check_positive();
  parser.add_flag("--overwrite", options.overwrite, "replace existing files");
  parser.parse(arguments);
  return options;
}

/// Returns the path of a file that `config` names: relative to the working directory, or, if it
/// does not exist there, relative to the folder of `config`.
fs::path found_beside(const fs::path& named, const fs::path& config) {
  std::error_code error;
  return fs::exists(named, error) ? named : config.parent_path() / named;
}

/// Returns the path for the DeepSpeed file that belongs to `output`: `conf/new_deepspeed.json` for
/// `conf/new.yaml`.
fs::path deepspeed_file_beside(const fs::path& output) {
  return output.parent_path() / (output.stem().string() + "_deepspeed.json");
}

documents::ConversionInput input_of(const ConvertOptions& options) {
  documents::ConversionInput input{documents::load_document(options.input), std::nullopt,
                                   options.gpus_per_machine, ""};
  const std::string named = documents::named_deepspeed_file(input.document);
  if (!named.empty()) {
    input.deepspeed_file = documents::load_document(found_beside(named, options.input));
  }
  if (!options.output.empty()) {
    input.deepspeed_file_name = deepspeed_file_beside(options.output).string();
  }
  return input;
}

void note(const std::string& remark) {
  notice(Component::launcher, LogLevel::warn, "note: ", remark);
}

void say(const std::vector<std::string>& remarks) {
  for (const std::string& remark : remarks) {
    note(remark);
  }
}

void write(const Conversion& conversion, const ConvertOptions& options, bool json) {
  const std::string text = json ? documents::to_json(conversion.document)
                                : documents::to_text(conversion.document, options.output);
  if (options.output.empty()) {
    std::fputs(text.c_str(), stdout);
    return;
  }
  const Overwrite overwrite = options.overwrite ? Overwrite::yes : Overwrite::no;
  if (conversion.deepspeed_file) {
    check_free(options.output, overwrite);  // checks both files before the first is written
    const fs::path beside = deepspeed_file_beside(options.output);
    write_file(beside, documents::to_json(*conversion.deepspeed_file), overwrite);
    note(beside.string() + " contains the settings that Accelerate's file has no key for");
  }
  write_file(options.output, text, overwrite);
}

struct ToFsdp2Options {
  fs::path config_file;
  fs::path output_file;
  bool overwrite = false;
};

ToFsdp2Options read_to_fsdp2(std::span<const std::string> arguments) {
  ToFsdp2Options options;
  OptionParser parser("Converts a configuration file from FSDP 1 to FSDP 2.", "acclaunch to-fsdp2");
  parser.add_option("--config_file", options.config_file, "file to read").required();
  parser.add_option("--output_file", options.output_file,
                    "file to write; default, with --overwrite: the file that was read");
  parser.add_flag("--overwrite", options.overwrite, "replace an existing file");
  parser.parse(arguments);
  return options;
}

}  // namespace

int convert_config_command(std::span<const std::string> arguments) {
  const ConvertOptions options = read_convert_config(arguments);
  const documents::ConversionInput input = input_of(options);
  const documents::ConfigForm form = options.form.empty()
                                         ? documents::opposite_form(input.document)
                                         : documents::config_form_named(options.form);
  const Conversion conversion = documents::convert_config(input, form);
  write(conversion, options, form == documents::ConfigForm::deepspeed_json);
  say(conversion.remarks);
  return 0;
}

int to_fsdp2_command(std::span<const std::string> arguments) {
  const ToFsdp2Options options = read_to_fsdp2(arguments);
  if (options.output_file.empty() && !options.overwrite) {
    throw Error(Errc::invalid_argument, "to-fsdp2: give --output_file, or --overwrite to replace " +
                                            options.config_file.string());
  }
  const fs::path output = options.output_file.empty() ? options.config_file : options.output_file;
  const Conversion conversion = documents::to_fsdp2(documents::load_document(options.config_file));
  write_file(output, documents::to_text(conversion.document, output),
             options.overwrite ? Overwrite::yes : Overwrite::no);
  say(conversion.remarks);
  return 0;
}

}  // namespace acc::launcher::commands
