// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"
#include "acc/settings/settings.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::documents {

/// Contents of a DeepSpeed JSON file that are not values in `Settings`.
struct DeepSpeedFile {
  struct Key {
    std::string path;   ///< `zero_optimization.reduce_scatter`
    std::string text;   ///< its value; empty for a block or a list
    std::string where;  ///< its place: `ds.json:12`
  };
  std::vector<Key> left_to_program;    ///< keys without a row in the settings table, not at default
  std::vector<Key> filled_by_program;  ///< "auto" values that depend on the program's model or data
  std::vector<std::string> notices;    ///< one line per list above and per translated old name
};

/// Stores the values of a DeepSpeed JSON file (keys of DeepSpeed 0.19.8) in `settings`, which must
/// already hold the flags and the YAML file. `"auto"` keeps their value; any other value must not
/// contradict a flag. A setting that Accelerate's plugin refuses next to a DeepSpeed file must not
/// be in the YAML file. Features that libacc_runtime lacks are listed in the setting
/// deepspeed_unsupported, so that the runtime can refuse them; a Python program may have them.
/// world_size: 0 if unknown; then it is not compared with the batch sizes. Throws Error(config)
/// with all faults and leaves `settings` unchanged in that case.
DeepSpeedFile apply_deepspeed_json(const Document& document, int world_size,
                                   settings::Settings& settings);

/// A key of DeepSpeed's file without a row in the settings table. Python programs read it from the
/// file.
struct ForeignDeepSpeedKey {
  std::string_view path;
  std::string_view fallback;        ///< DeepSpeed's default; empty: every value has an effect
  bool refused_by_runtime = false;  ///< libacc_runtime lacks the feature and reports an error
};

/// Returns all such keys: single values first, then the blocks that acclaunch does not examine.
std::vector<ForeignDeepSpeedKey> foreign_deepspeed_keys();

}  // namespace acc::documents
