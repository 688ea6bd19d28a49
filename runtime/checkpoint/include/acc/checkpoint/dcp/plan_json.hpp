// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/dcp/folder_plan.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// A folder's plan as JSON, for the manifest. Only its tables are stored, because everything else
/// is a function of them; so the size does not grow with the world (docs/formats/acclaunch.md).
namespace acc::checkpoint::dcp {

/// Version of the plan. To be raised with every change of the cut rules, of archive sizes, or of
/// the order in a rank's file. A folder with another version is read by its `.metadata`.
inline constexpr int kPlanVersion = 1;

/// Returns the plan as JSON. Values come without their pickles. Throws Error(not_supported) if a
/// name is not UTF-8.
std::string format_plan(const FolderPlan& plan);

/// Parses a plan. Returns nothing if it has another version. `path` and `name`
/// ("plans.optimizer_0") are for messages. `ranks` is the number of the folder's files, which the
/// plan must have too; it and the text bound the memory used. Throws Error(config).
std::optional<FolderPlan> parse_plan(std::string_view text, int ranks,
                                     const std::filesystem::path& path, const std::string& name);

}  // namespace acc::checkpoint::dcp
