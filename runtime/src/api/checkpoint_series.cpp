// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/checkpoint_series.hpp"

#include "acc/base/log.hpp"
#include "acc/base/object_store.hpp"
#include "acc/checkpoint/files/input_path.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/open/series_folder.hpp"
#include "api/runtime_state.hpp"
#include "state_dict/snapshot_recovery.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

std::string absolute(const std::string& folder) {
  const fs::path path = is_object(folder) ? fs::path(folder) : fs::absolute(folder);
  return (path / "").lexically_normal().string();
}

/// The job's record of a folder. Kept in the runtime, because several CheckpointSeries objects of
/// one job may use the same folder.
detail::KnownSeries& known(detail::RuntimeState& state, const std::string& folder) {
  return state.series[absolute(folder)];
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

void detail::check_gathers_nothing(const settings::ShardingSettings& settings) {
  const char* const what = settings.state_dict_type == settings::StateDictType::full
                               ? "fsdp_state_dict_type FULL_STATE_DICT"
                           : settings.save_16bit_model ? "zero3_save_16bit_model"
                                                       : nullptr;
  if (what != nullptr) {
    throw Error(Errc::not_supported,
                fmt::format("save_async with {}: the weights are gathered while they are written; "
                            "use SHARDED_STATE_DICT without a 16-bit model, and acclaunch "
                            "merge-weights for the whole model, or leave save_async out",
                            what));
  }
}

void detail::check_series(const settings::ShardingSettings& settings) {
  if (settings.save_async) {
    check_gathers_nothing(settings);
  }
}

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
  std::string path = path_of(number);
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

bool CheckpointSeries::is_memory_due(const Optimizer& optimizer) const {
  return is_memory_due(optimizer, runtime_.state_->leaves_epoch());
}

bool CheckpointSeries::is_memory_due(const Optimizer& optimizer, bool leaves) const {
  const detail::RuntimeState& state = *runtime_.state_;
  const std::int64_t every = state.settings.sharding.memory_checkpoint_every;
  return state.snapshots != nullptr && every != 0 && (leaves || optimizer.steps() % every == 0);
}

bool CheckpointSeries::keep_in_memory(const Model& model, const Optimizer& optimizer,
                                      const SavedState& saved) const {
  detail::RuntimeState& state = *runtime_.state_;
  const bool leaves = state.leaves_epoch();
  if (state.settings.elastic_replicas) {
    state.check_rejoin();  // before ranks leave because a machine joins
  }
  const bool begun = is_memory_due(optimizer, leaves) && begin_snapshot(model, optimizer, saved);
  if (leaves && begun && is_kept()) {  // of this step, from which the ranks go on
    throw Error(Errc::peer_lost, "the membership of the job changes after this step");
  }
  return begun;
}

/// Waits for the snapshot in flight. A failure is a warning.
bool CheckpointSeries::is_kept() const {
  const auto failure = runtime_.state_->snapshots->wait();
  if (failure) {
    logger(Component::runtime).warn("{}", *failure);
  }
  return !failure;
}

bool CheckpointSeries::begin_snapshot(const Model& model, const Optimizer& optimizer,
                                      const SavedState& saved) const {
  detail::RuntimeState& state = *runtime_.state_;
  const trace::Scope traced(state.tracer.get(), "checkpoint", "checkpoint", "snapshot in memory");
  const auto parts = detail::RuntimeState::parts_of(std::vector<Trained>{{model, optimizer}});
  is_kept();  // the one before
  try {
    state.snapshots->keep(parts, saved,
                          {.run = absolute(folder_),
                           .history = state.history,
                           .every = state.settings.sharding.memory_checkpoint_every});
    return true;
  } catch (const Error& error) {
    if (error.code() != Errc::out_of_memory && error.code() != Errc::config) {
      throw;
    }
    logger(Component::runtime).warn("no snapshot of step {}: {}", optimizer.steps(), error.what());
    return false;
  }
}

std::optional<CheckpointSeries::Resumed> CheckpointSeries::resume(Model& model,
                                                                  Optimizer& optimizer) const {
  return go_back(model, optimizer, true);
}

/// Later snapshots of this rank are of a run that is not continued: another rank may lack them.
/// can_begin: this rank has its initial values, or can make them again. If one cannot and there is
/// nothing to load, all ranks fail, so that all are started again.
std::optional<CheckpointSeries::Resumed> CheckpointSeries::go_back(Model& model,
                                                                   Optimizer& optimizer,
                                                                   bool can_begin) const {
  auto resumed = load_newest(model, optimizer);
  if (runtime_.state_->snapshots != nullptr) {
    runtime_.state_->snapshots->forget_after(optimizer.steps(), absolute(folder_));
  }
  // Each machine has the state before the next one can be lost.
  if (resumed && runtime_.state_->settings.elastic_replicas &&
      begin_snapshot(model, optimizer, resumed->state)) {
    is_kept();
  }
  if (!resumed && runtime_.state_->replaces_ranks()) {
    const std::array<double, 1> own = {can_begin ? 0.0 : 1.0};
    const auto all = runtime_.all_gather(own);
    if (std::ranges::count(all, 0.0) != std::ssize(all)) {
      throw Error(Errc::not_supported,
                  "there is no whole state to go back to, and initialisers of the program are "
                  "called only once: save before the first step, or start the job again");
    }
  }
  return resumed;
}

std::optional<CheckpointSeries::Resumed> CheckpointSeries::rejoin(Model& model,
                                                                  Optimizer& optimizer) const {
  while (true) {
    runtime_.state_->rejoin();
    try {
      return go_back(model, optimizer, model.state_->knows_initial_values());
    } catch (const Error& error) {
      if (!can_rejoin(error)) {
        throw;
      }
    }
  }
}

bool CheckpointSeries::can_rejoin(const Error& error) const {
  return runtime_.state_->can_rejoin(error);
}

std::optional<CheckpointSeries::Resumed> CheckpointSeries::load_newest(Model& model,
                                                                       Optimizer& optimizer) const {
  const std::optional<std::string> path = newest();
  detail::RuntimeState& state = *runtime_.state_;
  const auto load = [&] { return Resumed{runtime_.load(*path, model, optimizer), *path}; };
  if (state.settings.sharding.memory_checkpoint_every == 0) {
    return path ? std::optional(load()) : std::nullopt;
  }
  const auto parts = detail::RuntimeState::parts_of(std::vector<Trained>{{model, optimizer}});
  if (state.snapshots != nullptr) {
    state.snapshots->wait();
  }
  auto recovery = sharding::guarded(state.groups, [&] {
    return state_dict::SnapshotRecovery(state.snapshots.get(), parts, absolute(folder_));
  });
  const auto& [choice, reason] = recovery.search();
  const double on_disk = by_rank_zero(runtime_, folder_, [&] {
    const auto manifest =
        path ? checkpoint::read_manifest(checkpoint::InputPath(*path)) : std::nullopt;
    return manifest ? static_cast<double>(manifest->step) : -1.0;
  });
  const std::string disk = !path           ? std::string("nothing on disk")
                           : on_disk < 0.0 ? *path + " on disk"
                                           : fmt::format("step {} on disk, {}",
                                                         static_cast<std::int64_t>(on_disk), *path);
  const bool from_memory = choice && static_cast<double>(choice->step) >= on_disk;
  if (runtime_.rank() == 0 && (choice || path || state.settings.identity.restart_count > 0)) {
    std::string how;
    if (from_memory) {
      how += reason.empty() ? "" : "; " + reason;
      how += choice->sent.empty()
                 ? ""
                 : fmt::format("; {} snapshots from other machines", choice->sent.size());
      how += choice->same_layout ? "" : fmt::format("; made by {} ranks", choice->ranks);
    }
    notice(Component::runtime, LogLevel::info, "acclaunch: ",
           from_memory
               ? fmt::format("resuming from step {} in memory ({}{})", choice->step, disk, how)
           : !path  ? fmt::format("starting anew: {}, {}", disk, reason)
           : choice ? fmt::format("resuming from {} ({}step {} in memory is older)", disk,
                                  reason.empty() ? "" : reason + ", ", choice->step)
                    : fmt::format("resuming from {} ({})", disk, reason));
  }
  if (!from_memory) {
    return path ? std::optional(load()) : std::nullopt;
  }
  return Resumed{sharding::guarded(state.groups, [&] { return recovery.restore(); }), "memory"};
}

std::string CheckpointSeries::path_of(std::int64_t number) const {
  return (fs::path(folder_) / (kPrefix + std::to_string(number))).string();
}

}  // namespace acc
