#include "checkpoint_series.hpp"

#include "outputs.hpp"

#include <acc/base/error.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <regex>
#include <utility>
#include <vector>

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStepKey = "step";
constexpr std::int64_t kNone = -1;

std::string folder_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step_%08lld", static_cast<long long>(step));
  return text;
}

/// Steps that `folder` has a checkpoint of, be it half removed; the newest first.
std::vector<std::int64_t> steps_in(const fs::path& folder) {
  static const std::regex pattern(R"(step_(\d{8,18}))");
  std::vector<std::int64_t> steps;
  std::smatch match;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, match, pattern)) {
      steps.push_back(std::stoll(match[1].str()));
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::int64_t newest_step(const fs::path& folder) {
  if (!fs::exists(folder)) {
    return kNone;
  }
  for (const std::int64_t step : steps_in(folder)) {
    if (is_checkpoint(folder / folder_name(step))) {
      return step;
    }
  }
  return kNone;
}

}  // namespace

std::int64_t step_of(const acc::ProgramState& program, const std::string& path) {
  const auto step = program.find(kStepKey);
  if (step == program.end()) {
    throw acc::Error(acc::Errc::config,
                     path + ": the checkpoint names no step; another program's?");
  }
  return step->second;
}

acc::ProgramState program_state(std::int64_t step) {
  return {{kStepKey, step}};
}

CheckpointSeries::CheckpointSeries(acc::Runtime& runtime, fs::path folder)
    : runtime_(runtime), folder_(std::move(folder)) {}

// Rank 0 looks: what the others see of a network file system may be older.
std::optional<std::string> CheckpointSeries::newest() const {
  const std::int64_t seen = runtime_.rank() == 0 ? newest_step(folder_) : kNone;
  const std::array own = {static_cast<double>(seen)};
  const auto step = static_cast<std::int64_t>(runtime_.all_gather(own).front());
  if (step == kNone) {
    return std::nullopt;
  }
  return (folder_ / folder_name(step)).string();
}

void CheckpointSeries::save(const acc::Model& model, const acc::Optimizer& optimizer,
                            std::int64_t step) const {
  runtime_.save((folder_ / folder_name(step)).string(), model, optimizer, program_state(step));
  if (runtime_.rank() == 0) {
    remove_older();
  }
}

void CheckpointSeries::remove_older() const {
  constexpr int kKept = 2;
  int complete = 0;
  for (const std::int64_t step : steps_in(folder_)) {
    const fs::path path = folder_ / folder_name(step);
    if (complete < kKept && is_checkpoint(path)) {
      ++complete;
      continue;
    }
    fs::remove(path / kCheckpointMark);  // first: what is left of it is no checkpoint any more
    fs::remove_all(path);
  }
}

}  // namespace train_gpt
