#pragma once

#include "acc/plugins/document.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::plugins {

/// The words in which a configuration is written.
enum class ConfigForm {
  fsdp,            ///< Accelerate's file, FSDP 1
  fsdp2,           ///< Accelerate's file, FSDP 2
  deepspeed,       ///< Accelerate's file, DeepSpeed
  deepspeed_json,  ///< DeepSpeed's own file
};

/// The form that a word of the command line names. Throws Error(invalid_argument).
ConfigForm config_form_named(const std::string& name);

/// What is converted: an Accelerate file or a DeepSpeed JSON file, and the DeepSpeed file that an
/// Accelerate file names.
struct ConversionInput {
  Document document;
  std::optional<Document> deepspeed_file;
  int gpus_per_machine = 0;  ///< 0: as the file says, num_processes / num_machines
  /// How the result may call a DeepSpeed file of its own; empty: it may have none.
  std::string deepspeed_file_name;
};

struct Conversion {
  Node document;
  /// What an Accelerate file cannot say of DeepSpeed; `document` names it as it was asked to.
  std::optional<Node> deepspeed_file;
  /// What has no counterpart, what changes its meaning and what changes in precision: a line each.
  std::vector<std::string> remarks;
};

/// Whether a parsed file is DeepSpeed's own, and not one of Accelerate's.
bool is_deepspeed_json(const Document& document);

/// The path under `deepspeed_config_file` in an Accelerate file; empty where there is none.
std::string named_deepspeed_file(const Document& document);

/// FSDP words for a DeepSpeed file, DeepSpeed's for an FSDP file.
ConfigForm opposite_form(const Document& document);

/// Says the same in another form, by meaning and not key by key; what has nothing to do with
/// sharding stays. Throws Error(config) where the file has faults, is neither FSDP's nor
/// DeepSpeed's, or leaves out a size that the other form has to name.
Conversion convert_config(const ConversionInput& input, ConfigForm form);

/// What `accelerate to-fsdp2` makes of a file, key by key: FSDP 1's keys renamed or dropped, all
/// else carried over. A file without FSDP settings, or with those of FSDP 2, stays as it is.
Conversion to_fsdp2(const Document& document);

}  // namespace acc::plugins
