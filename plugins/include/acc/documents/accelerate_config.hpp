// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/settings.hpp"

#include <set>
#include <string>
#include <vector>

namespace acc::documents {

/// Contents of an Accelerate configuration file that are not values in `Settings`.
struct AccelerateConfig {
  /// NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; empty if it is missing or wrong.
  std::string distributed_type;
  std::string distributed_type_where;  ///< its place: `config.yaml:3`
  bool has_parallelism_config = false;
  /// Keys of `deepspeed_config` in file order, and `mixed_precision` if the file holds it: the
  /// value of ACCELERATE_CONFIG_DS_FIELDS.
  std::vector<std::string> deepspeed_fields;
  std::vector<std::string> notices;   ///< one line per translated old name or ignored key
  std::set<std::string> faulty_keys;  ///< settings whose value was wrong and was not stored
};

/// Strictness of reading an Accelerate file. The defaults are acclaunch's own rules; with all three
/// `false` the file is read as Accelerate 1.15 reads it.
struct AccelerateConfigRules {
  /// true: an unknown key inside a block is a fault, and an old name of a key is translated. false:
  /// both have no effect, as in Accelerate.
  bool checks_inner_keys = true;
  /// true: rdzv_backend, same_network and enable_cpu_affinity are read. false: they have no effect,
  /// as in Accelerate, where the defaults of their flags replace the file's values.
  bool reads_hidden_keys = true;
  /// true: a value that a setting cannot have is a fault. false: such a value is not stored; code
  /// that must pass it on as Accelerate does reads it from the document. With false,
  /// `distributed_type` must also have Accelerate's exact spelling, and a key that Accelerate does
  /// not know is a fault even if its value is empty.
  bool checks_values = true;
};

/// Reads a file in the format of Accelerate 1.15 into `settings`. Adds a sentence to `faults` for
/// each unknown key, each wrong value and each feature that acclaunch does not have (TPU,
/// SageMaker, Megatron-LM, …). Values without a fault are stored even if the file has faults, so
/// that later checks can report their faults as well.
AccelerateConfig read_accelerate_config(const Document& document, settings::Settings& settings,
                                        const AccelerateConfigRules& rules,
                                        settings::Faults& faults);

/// Reads a file with acclaunch's own rules. Throws Error(config) with all faults.
AccelerateConfig apply_accelerate_config(const Document& document, settings::Settings& settings);

}  // namespace acc::documents
