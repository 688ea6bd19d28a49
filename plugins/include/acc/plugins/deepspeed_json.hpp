#pragma once

#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"

#include <string>
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
/// `world_size` 0: not known, and batch sizes are not compared with it. Throws Error(config) with
/// all faults, and then leaves `settings` as they were.
DeepSpeedFile apply_deepspeed_json(const Document& document, int world_size, Settings& settings);

}  // namespace acc::plugins
