#pragma once

#include "acc/launcher/launch_plan.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Values that are written as torchrun reads them, in whichever face they stand. All throw
// Error(config) that names `Given::where`, what was expected and what was found.
namespace acc::launcher {

/// A value and how the user gave it: `--tee`, or the variable's name.
struct Given {
  std::string where;
  std::string text;
};

/// One digit 0..3 for all workers, or `RANK:DIGIT` joined by commas; RANK may also be a range,
/// `0-3`. Of workers that are not named, none. By local rank; ranks that are not there don't count.
std::vector<OutputPlan::Streams> read_streams(const Given& given, int local_world_size);

/// `0,2`: local ranks. Empty text: nothing.
std::vector<int> read_local_ranks(const Given& given);

/// `0-3,8`: numbers and ranges, in their order.
std::vector<int> read_ranges(const Given& given);

struct OutputWords {
  Given redirects;    ///< streams that go to a file instead of the console; empty text: none
  Given tee;          ///< streams that go to both
  Given local_ranks;  ///< whose streams the console shows; empty text: all
  Given log_dir;  ///< empty text: a temporary folder; /dev/null: no files, whatever is asked for
};

/// Fills in where the workers' output goes. `scratch` is for what nobody asked to keep.
OutputPlan plan_output(const OutputWords& words, const std::string& run_id, int local_world_size,
                       const std::filesystem::path& working_directory,
                       const std::filesystem::path& scratch);

/// `key=value` joined by commas: sets the times of `plan`, or else torchrun's defaults for its
/// backend.
/// Returns notices about keys that have no effect.
std::vector<std::string> read_rendezvous_conf(const Given& given, RendezvousPlan& plan);

struct Endpoint {
  std::string host;  ///< an IPv6 address without its brackets
  std::optional<std::uint16_t> port;
};

/// `HOST[:PORT]`; an IPv6 address stands in brackets.
Endpoint read_endpoint(const Given& given);

struct MachineRange {
  int least = 1;
  int most = 1;
};

/// `N`, or `MIN:MAX`.
MachineRange read_machine_range(const Given& given);

/// Names of signals joined by commas, `SIGTERM,SIGUSR1`.
std::vector<int> read_signals(const Given& given);

/// `SIGTERM`.
std::string signal_word(int signal);

/// Throws Error(config) where CUDA_VISIBLE_DEVICES has fewer entries than a machine has workers
/// that shall see one each. `where`: what asks for that.
void check_own_gpus(const std::string& where, int local_world_size,
                    const plugins::Environment& environment);

/// A random UUID, for a run that was given no id.
std::string random_run_id();

}  // namespace acc::launcher
