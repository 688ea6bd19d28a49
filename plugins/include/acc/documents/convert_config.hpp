// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::documents {

/// The format of a configuration file.
enum class ConfigForm {
  fsdp,            ///< Accelerate's file with `fsdp_config`, version 1
  fsdp2,           ///< Accelerate's file with `fsdp_config`, version 2
  deepspeed,       ///< Accelerate's file with `deepspeed_config`
  deepspeed_json,  ///< DeepSpeed's own JSON file
};

/// Returns the form that a value of --to names (fsdp, fsdp2, deepspeed, deepspeed-json). Throws
/// Error(invalid_argument).
ConfigForm config_form_named(const std::string& name);

/// Input of a conversion.
struct ConversionInput {
  /// An Accelerate file or a DeepSpeed JSON file.
  Document document;
  /// The DeepSpeed file that an Accelerate file names under `deepspeed_config_file`.
  std::optional<Document> deepspeed_file;
  int gpus_per_machine = 0;  ///< 0: num_processes / num_machines of the file
  /// Name for a DeepSpeed JSON file that the result may refer to; empty: the result must be one
  /// file.
  std::string deepspeed_file_name;
};

/// Result of a conversion.
struct Conversion {
  Node document;
  /// A DeepSpeed JSON file with the settings for which an Accelerate file has no key. `document`
  /// refers to it as `ConversionInput::deepspeed_file_name`.
  std::optional<Node> deepspeed_file;
  /// Conversion warnings, one line each: settings without a counterpart, settings whose meaning
  /// changes, and changes of numerical precision.
  std::vector<std::string> remarks;
};

/// True if a parsed file is DeepSpeed's own JSON file, not a JSON file of Accelerate.
bool is_deepspeed_json(const Document& document);

/// Returns the path under `deepspeed_config_file` in an Accelerate file; empty if it has none.
std::string named_deepspeed_file(const Document& document);

/// Returns the form to convert to by default: `fsdp` for a DeepSpeed file, `deepspeed` for an FSDP
/// file.
ConfigForm opposite_form(const Document& document);

/// Converts a configuration to another form. Translates the meaning of the settings, not single
/// keys; entries that do not concern sharding stay. Throws Error(config) if the file has faults, is
/// neither FSDP's nor DeepSpeed's, or lacks a size that the other form must state.
Conversion convert_config(const ConversionInput& input, ConfigForm form);

/// Converts a file key by key as `accelerate to-fsdp2` does: renames or drops FSDP 1's keys and
/// copies all others. A file without FSDP settings, or with those of FSDP 2, stays unchanged.
Conversion to_fsdp2(const Document& document);

}  // namespace acc::documents
