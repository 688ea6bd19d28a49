#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/faults.hpp"
#include "acc/plugins/settings.hpp"

#include <set>
#include <string>
#include <vector>

namespace acc::plugins {

/// What an Accelerate configuration file says besides the settings that it sets.
struct AccelerateConfig {
  /// NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; empty: missing or wrong.
  std::string distributed_type;
  std::string distributed_type_where;  ///< `config.yaml:3`
  bool has_parallelism_config = false;
  /// Keys of `deepspeed_config` in file order, and `mixed_precision` if the file holds it:
  /// ACCELERATE_CONFIG_DS_FIELDS.
  std::vector<std::string> deepspeed_fields;
  std::vector<std::string> notices;   ///< old names translated, keys without effect
  std::set<std::string> faulty_keys;  ///< their values are wrong and were not taken
};

/// How closely a file is read.
struct AccelerateConfigRules {
  /// A key inside a block that nobody knows is a fault, and an old name counts; else both have no
  /// effect, as in Accelerate.
  bool checks_inner_keys = true;
  /// rdzv_backend, same_network and enable_cpu_affinity count; else they have no effect, since in
  /// Accelerate the defaults of their flags hide them.
  bool reads_hidden_keys = true;
  /// A value that a setting cannot have is a fault; else it is not taken, and whoever hands it on
  /// as Accelerate does looks at the document. The words of `distributed_type` are exact then, and
  /// keys that Accelerate does not know are unknown even where they are empty.
  bool checks_values = true;
};

/// Reads a file as Accelerate 1.15 writes it into `settings`. Adds all that is wrong to `faults`:
/// unknown keys and values, and what acclaunch does not do (TPU, SageMaker, Megatron, …), by name.
/// What is right counts nevertheless, so that later checks find their faults as well.
AccelerateConfig read_accelerate_config(const Document& document, Settings& settings,
                                        const AccelerateConfigRules& rules, Faults& faults);

/// The same; throws Error(config) with all faults.
AccelerateConfig apply_accelerate_config(const Document& document, Settings& settings);

}  // namespace acc::plugins
