// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/launch_plan.hpp"

#include <filesystem>
#include <string>
#include <vector>

// Parsers for output options in torchrun's notation. All throw Error(config).
namespace acc::launcher::plan {

/// Parses --redirects or --tee: one digit 0..3 for all workers, or `RANK:DIGIT` joined by commas,
/// where RANK may be a range, `0-3`. Returns the streams by local rank: none for workers that are
/// not named; ranks beyond `local_world_size` are ignored.
std::vector<OutputPlan::Streams> read_streams(const Sourced<std::string>& given,
                                              int local_world_size);

/// Parses words joined by commas; `,,` is a comma in a word.
std::vector<std::string> read_filters(std::string_view text);

/// Parses local ranks, `0,2`. An empty text gives an empty list.
std::vector<int> read_local_ranks(const Sourced<std::string>& given);

/// The output options as given: the flags --redirects, --tee, --local_ranks_filter and --log_dir.
struct OutputWords {
  Sourced<std::string> redirects;
  Sourced<std::string> tee;
  Sourced<std::string> local_ranks;
  Sourced<std::string> log_dir;
};

/// Returns a folder relative to the working directory; an empty text stays empty. Throws
/// Error(config) if the path is a file.
std::filesystem::path named_folder(const Sourced<std::string>& given,
                                   const std::filesystem::path& working_directory);

/// Plans the workers' output. `scratch` is the temporary folder for files that need not be kept.
OutputPlan plan_output(const OutputWords& words, const std::string& run_id, int local_world_size,
                       const std::filesystem::path& working_directory,
                       const std::filesystem::path& scratch);

}  // namespace acc::launcher::plan
