#pragma once

#include "checkpoint/dcp/folder_plan.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// A plan as JSON, for the manifest: its tables, of which everything else is a pure function, so
/// that its size does not grow with the world.
namespace acc::checkpoint::dcp {

/// To be raised with every change of the cut rules, of what an archive's size is, or of the order
/// in a rank's file: of folders that were written by another one, readers use `.metadata`.
inline constexpr int kPlanVersion = 1;

/// Of values without their pickles. Throws Error(config) for names that are not UTF-8.
std::string format_plan(const FolderPlan& plan);

/// Nothing where it is of another version. `name`: in the file at `path`, for messages
/// ("plans.optimizer_0"). `ranks`: how many files the folder has, which the plan must have too;
/// memory is bounded by it and by the text. Throws Error(config).
std::optional<FolderPlan> parse_plan(std::string_view text, int ranks,
                                     const std::filesystem::path& path, const std::string& name);

}  // namespace acc::checkpoint::dcp
