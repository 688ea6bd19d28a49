#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "plan/given.hpp"

#include <filesystem>
#include <string>
#include <vector>

// Where output goes, as torchrun's -r and -t say it. All throw Error(config).
namespace acc::launcher {

/// One digit 0..3 for all workers, or `RANK:DIGIT` joined by commas; RANK may also be a range,
/// `0-3`. Of workers that are not named, none. By local rank; ranks that are not there don't count.
std::vector<OutputPlan::Streams> read_streams(const Given& given, int local_world_size);

/// Words joined by commas; `,,` is a comma in a word.
std::vector<std::string> read_filters(std::string_view text);

/// `0,2`: local ranks. Empty text: nothing.
std::vector<int> read_local_ranks(const Given& given);

struct OutputWords {
  Given redirects;    ///< streams that go to a file instead of the console; empty text: none
  Given tee;          ///< streams that go to both
  Given local_ranks;  ///< whose streams the console shows; empty text: all
  Given log_dir;  ///< empty text: a temporary folder; /dev/null: no files, whatever is asked for
};

/// `scratch` is for what nobody asked to keep.
OutputPlan plan_output(const OutputWords& words, const std::string& run_id, int local_world_size,
                       const std::filesystem::path& working_directory,
                       const std::filesystem::path& scratch);

}  // namespace acc::launcher
