// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/checkpoint_series.hpp"

#include "acc/base/log.hpp"
#include "acc/base/object_store.hpp"
#include "acc/checkpoint/open/series_folder.hpp"
#include "api/runtime_state.hpp"

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

/// Returns n of "checkpoint_<n>".
std::int64_t number_of(const fs::path& path) {
  return std::stoll(path.filename().string().substr(std::string_view(kPrefix).size()));
}

/// The job's record of a folder. Kept in the runtime, because several CheckpointSeries objects of
/// one job may use the same folder.
detail::KnownSeries& known(detail::RuntimeState& state, const std::string& folder) {
  const fs::path path = is_object(folder) ? fs::path(folder) : fs::absolute(folder);
  return state.series[(path / "").lexically_normal().string()];
}

/// Returns the number of the next checkpoint. Throws Error(config) if a checkpoint has appeared
/// that this job did not save: two jobs in one folder would resume from each other's checkpoints.
std::int64_t next_number(detail::RuntimeState& state, const std::string& folder) {
  const std::int64_t next = number_of(checkpoint::SeriesFolder(folder).next());
  const std::optional<std::int64_t> last = known(state, folder).last;
  if (last && next > *last + 1) {
    const std::string own = *last < 0 ? "no checkpoint" : fmt::format("{}{}", kPrefix, *last);
    throw Error(Errc::config,
                fmt::format("{}: found {}{}, which this job did not save (it knows of {} as the "
                            "newest): another job saves to the same series; use a separate folder "
                            "for each job",
                            folder, kPrefix, next - 1, own));
  }
  return next;
}

/// Warns about checkpoints that cannot be removed, once per reason: each save tries again and may
/// fail in the same way.
void warn(detail::KnownSeries& series, const std::string& folder, const std::string& failures) {
  if (!failures.empty() && failures != series.warned) {
    logger(Component::runtime)
        .warn(
            "{}: cannot remove every old checkpoint: {}; training continues, and each save tries "
            "again",
            folder, failures);
  }
  series.warned = failures;
}

/// Calls `look` on rank 0 and returns its result on every rank. The other ranks do not look
/// themselves: on a network file system they may see an older state of the folder. If rank 0 fails,
/// all ranks throw.
template <typename Look>
double by_rank_zero(Runtime& runtime, const std::string& folder, const Look& look) {
  std::optional<Error> failure;
  std::array<double, 2> found = {0.0, 0.0};  // result, 1 if rank 0 failed
  if (runtime.rank() == 0) {
    try {
      found[0] = look();
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {  // from the standard library's file functions
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
    throw Error(Errc::invalid_argument,
                "total_limit must be at least 1, found " + std::to_string(*options_.total_limit));
  }
}

std::optional<std::string> CheckpointSeries::newest() const {
  runtime_.state_->end_save();
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
  state.end_save();  // which may be the checkpoint before this one
  const auto number = static_cast<std::int64_t>(by_rank_zero(
      runtime_, folder_, [&] { return static_cast<double>(next_number(state, folder_)); }));
  const std::string path = path_of(number);
  const std::vector<Trained> parts = {{model, optimizer}};
  // Nothing else uses the record while a save is in flight, since every use waits for that first.
  const auto committed = [&series = known(state, folder_), folder = folder_, path, number,
                          limit = options_.total_limit] {
    series.last = number;
    const auto failures = checkpoint::SeriesFolder(folder).committed(path, limit);
    warn(series, folder, fmt::format("{}", fmt::join(failures, "; ")));
  };
  if (state.settings.sharding.save_async) {
    state.save_async(path, parts, saved, checkpoint::Existing::refuse, committed);
    return path;
  }
  state.save(path, parts, saved, checkpoint::Existing::refuse);
  if (runtime_.rank() == 0) {
    try {
      committed();
    } catch (const std::exception& error) {
      // The peers have left the save already; aborting makes their next collective fail.
      state.groups.abort(
          fmt::format("rank 0 could not add {} to its series: {}", path, error.what()));
      throw;
    }
  }
  return path;
}

std::string CheckpointSeries::path_of(std::int64_t number) const {
  return (fs::path(folder_) / (kPrefix + std::to_string(number))).string();
}

}  // namespace acc
