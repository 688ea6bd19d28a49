#pragma once

#include "acc/plugins/settings_table.hpp"

#include <string>
#include <string_view>
#include <vector>

/// The keys of a DeepSpeed JSON file (0.19.8). A key is named by its path:
/// `zero_optimization.stage`.
namespace acc::plugins::deepspeed {

/// The row of a key, be it a setting of ours or one that is checked and left to the program;
/// nullptr for others. Its `json` is the path.
const SettingRow* find_key(std::string_view path);

/// Whether the program alone has a use for the key.
bool is_left_to_program(const SettingRow& row);

/// Whether such a key, or a block that we look into no further, asks the runtime for what it has
/// not.
bool is_refused_by_runtime(std::string_view path);

/// Whether the path is that of a block whose keys are all known. Others are refused in it.
bool is_block(std::string_view path);

/// Whether the path is that of a block, or of a value, that DeepSpeed knows and we look into no
/// further.
bool is_opaque(std::string_view path);

/// The names that may stand in a block; in the file itself for "".
std::vector<std::string_view> names_in(std::string_view block);

/// Who fills in an "auto".
enum class Auto {
  nobody,
  settings,   ///< Accelerate's plugin, from flags and the YAML file
  precision,  ///< Accelerate's plugin, from mixed_precision
  data,       ///< the program, from the batch size of its data loader
  model,      ///< the program, from the hidden size of its model
};
Auto filled_by(std::string_view path);

/// Whether DeepSpeed 0.19.8 no longer knows the key.
bool is_removed(std::string_view path);

/// An earlier name of a key that still counts.
struct Renamed {
  std::string_view old_path;
  std::string_view path;
  bool is_switch;  ///< true meant what a device "cpu" means today
};
const Renamed* find_renamed(std::string_view path);

}  // namespace acc::plugins::deepspeed
