#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::plugins {

/// What a DeepSpeed JSON file says besides the settings that it sets.
struct DeepSpeedFile {
  struct Key {
    std::string path;  ///< `zero_optimization.reduce_scatter`
    std::string text;  ///< its value; empty for a block or a list
    std::string where;
  };
  std::vector<Key> left_to_program;    ///< no setting of ours, not at their defaults
  std::vector<Key> filled_by_program;  ///< "auto" that needs the program's model or data
  std::vector<std::string> notices;    ///< a line for each list, old names translated
};

/// Puts what a DeepSpeed JSON file (keys of 0.19.8) says into `settings`, which hold the flags and
/// the YAML file already: `"auto"` leaves those in force, another value must not contradict a flag,
/// and what Accelerate's plugin does not want beside such a file may not stand in the YAML file.
/// What libacc_runtime has not goes into deepspeed_unsupported, for it to refuse. `world_size` 0:
/// not known, and batch sizes are not compared with it. Throws Error(config) with all faults, and
/// then leaves `settings` as they were.
DeepSpeedFile apply_deepspeed_json(const Document& document, int world_size, Settings& settings);

/// A key that is no setting of ours. A Python program has it from the file.
struct ForeignDeepSpeedKey {
  std::string_view path;
  std::string_view fallback;  ///< with which it says nothing; empty: where it stands, it says
  bool refused_by_runtime = false;
};
std::vector<ForeignDeepSpeedKey> foreign_deepspeed_keys();

}  // namespace acc::plugins
