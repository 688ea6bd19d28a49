#include "acc/runtime/checkpoint_series.hpp"

#include "acc/base/log.hpp"
#include "api/runtime_state.hpp"
#include "checkpoint/files/series_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "checkpoint_";

/// n of "checkpoint_<n>".
std::int64_t number_of(const fs::path& path) {
  return std::stoll(path.filename().string().substr(std::string_view(kPrefix).size()));
}

/// What a run knows of the folder. Two series of one run may share it.
detail::KnownSeries& known(detail::RuntimeState& state, const std::string& folder) {
  return state.series[(fs::absolute(folder) / "").lexically_normal().string()];
}

/// The number for the next save. Throws Error(config) where a checkpoint has appeared that is not
/// this run's: two runs in one folder would resume from each other's.
std::int64_t next_number(detail::RuntimeState& state, const std::string& folder) {
  const std::int64_t next = number_of(checkpoint::SeriesFolder(folder).next());
  const std::optional<std::int64_t> last = known(state, folder).last;
  if (last && next > *last + 1) {
    const std::string own = *last < 0 ? "no checkpoint" : fmt::format("{}{}", kPrefix, *last);
    throw Error(Errc::config,
                fmt::format("{}: found {}{}, which this job did not save (it knows of {} as the "
                            "newest): another job saves to the same series; give each job a "
                            "folder of its own",
                            folder, kPrefix, next - 1, own));
  }
  return next;
}

/// Once per reason: the next save tries again, and may fail alike.
void warn(detail::KnownSeries& series, const std::string& folder, const std::string& failures) {
  if (!failures.empty() && failures != series.warned) {
    logger("runtime")->warn(
        "{}: not every old checkpoint can be removed: {}; training goes on, and each save tries "
        "again",
        folder, failures);
  }
  series.warned = failures;
}

/// What rank 0 finds, on every rank: what the others see of a network file system may be older. A
/// failure there is one on all.
template <typename Look>
double by_rank_zero(Runtime& runtime, const std::string& folder, const Look& look) {
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
    throw Error(Errc::config,
                "rank 0 could not use the folder of checkpoints " + folder + "; see its message",
                0);
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
  const double number = by_rank_zero(runtime_, folder_, [this] {
    const checkpoint::SeriesFolder series(folder_);
    auto& last = known(*runtime_.state_, folder_).last;
    last = last ? last : number_of(series.next()) - 1;
    const auto path = series.newest();
    return path ? static_cast<double>(number_of(*path)) : -1.0;
  });
  if (number < 0.0) {
    return std::nullopt;
  }
  return path_of(static_cast<std::int64_t>(number));
}

std::string CheckpointSeries::save(const Model& model, const Optimizer& optimizer,
                                   const SavedState& saved) const {
  detail::RuntimeState& state = *runtime_.state_;
  const auto number = static_cast<std::int64_t>(by_rank_zero(
      runtime_, folder_, [&] { return static_cast<double>(next_number(state, folder_)); }));
  const std::string path = path_of(number);
  state.save(path, std::vector<Trained>{{model, optimizer}}, saved, checkpoint::Existing::refuse);
  if (runtime_.rank() == 0) {
    try {
      auto& series = known(state, folder_);
      series.last = number;
      const auto failures =
          checkpoint::SeriesFolder(folder_).committed(path, options_.total_limit);
      warn(series, folder_, fmt::format("{}", fmt::join(failures, "; ")));
    } catch (const std::exception& error) {  // peers are on their way, as after a save's commit
      state.groups.abort(
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
