// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/settings_table.hpp"

#include <string_view>
#include <vector>

/// The keys of a DeepSpeed JSON file (DeepSpeed 0.19.8). A key is named by its path, such as
/// `zero_optimization.stage`.
namespace acc::documents::deepspeed {

/// Returns the row of a key: of the settings table, or of the keys that are checked and left to the
/// program. Its `json` is the path. Returns nullptr for other keys.
const settings::SettingRow* find_key(std::string_view path);

/// True if only a program can use the key.
bool is_left_to_program(const settings::SettingRow& row);

/// True if a key of a program, or a block that is not examined, asks for a feature that
/// libacc_runtime lacks.
bool is_refused_by_runtime(std::string_view path);

/// True if the path names a block whose keys are all known, so that other keys in it are faults.
bool is_block(std::string_view path);

/// True if the path names a block or value that DeepSpeed knows and acclaunch does not examine.
bool is_opaque(std::string_view path);

/// Returns the names that may be used in a block; "" is the top level of the file.
std::vector<std::string_view> names_in(std::string_view block);

/// The component that fills in an "auto".
enum class Auto {
  nobody,    ///< "auto" is not allowed
  settings,  ///< Accelerate's plugin, from flags and the YAML file
  program,   ///< the program, from the batch size of its data loader or the size of its model
};
Auto filled_by(std::string_view path);

/// True if earlier versions of DeepSpeed knew the key and 0.19.8 does not.
bool is_removed(std::string_view path);

/// An earlier name of a key, which is still accepted.
struct Renamed {
  std::string_view old_path;
  std::string_view path;
  bool is_switch;  ///< a boolean: true stands for the device "cpu", false for "none"
};
const Renamed* find_renamed(std::string_view path);

}  // namespace acc::documents::deepspeed
