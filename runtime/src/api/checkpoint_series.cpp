#include "acc/runtime/checkpoint_series.hpp"

#include "api/runtime_state.hpp"
#include "checkpoint/files/series_folder.hpp"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <filesystem>
#include <utility>

namespace acc {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "checkpoint_";

/// n of "checkpoint_<n>".
double number_of(const fs::path& path) {
  return std::stod(path.filename().string().substr(std::string_view(kPrefix).size()));
}

/// What rank 0 finds, on every rank: what the others see of a network file system may be older. A
/// failure there is one on all.
template <typename Look>
double by_rank_zero(Runtime& runtime, const Look& look) {
  std::optional<Error> failure;
  std::array<double, 2> found = {0.0, 0.0};
  if (runtime.rank() == 0) {
    try {
      found[0] = look();
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {  // of the standard library's file functions
      failure = Error(Errc::config, error.what());
    }
    found[1] = failure ? 1.0 : 0.0;
  }
  const std::vector<double> all = runtime.all_gather(found);
  if (failure) {
    throw *failure;
  }
  if (all[1] != 0.0) {
    throw Error(Errc::config, "rank 0 could not use the folder of checkpoints; see its message", 0);
  }
  return all[0];
}

}  // namespace

CheckpointSeries::CheckpointSeries(Runtime& runtime, std::string folder, Options options)
    : runtime_(runtime), folder_(std::move(folder)), options_(options) {
  if (options_.total_limit && *options_.total_limit < 1) {
    throw Error(Errc::config,
                "total_limit must be at least 1, found " + std::to_string(*options_.total_limit));
  }
}

std::optional<std::string> CheckpointSeries::newest() const {
  const double number = by_rank_zero(runtime_, [this] {
    const auto path = checkpoint::SeriesFolder(folder_).newest();
    return path ? number_of(*path) : -1.0;
  });
  if (number < 0.0) {
    return std::nullopt;
  }
  return path_of(static_cast<std::int64_t>(number));
}

std::string CheckpointSeries::save(const Model& model, const Optimizer& optimizer,
                                   const SavedState& state) const {
  const double number = by_rank_zero(
      runtime_, [this] { return number_of(checkpoint::SeriesFolder(folder_).next()); });
  const std::string path = path_of(static_cast<std::int64_t>(number));
  runtime_.save(path, model, optimizer, state);
  if (runtime_.rank() == 0) {
    try {
      checkpoint::SeriesFolder(folder_).committed(path, options_.total_limit);
    } catch (const std::exception& error) {  // peers are on their way, as after a save's commit
      runtime_.state_->groups.abort(
          fmt::format("rank 0 could not put {} at the end of its series: {}", path, error.what()));
      throw;
    }
  }
  return path;
}

std::string CheckpointSeries::path_of(std::int64_t number) const {
  return (fs::path(folder_) / (kPrefix + std::to_string(number))).string();
}

}  // namespace acc
