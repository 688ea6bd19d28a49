// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace acc {

/// The checkpoints of one run: folders "FOLDER/checkpoint_<n>" (Accelerate's automatic naming),
/// each complete or absent, and the file FOLDER/latest with the name of the newest (as DeepSpeed
/// writes it). `newest` and `save` are collective. Throws Error(config) that names the path. Two
/// jobs must not save to the same folder; `save` throws if it finds a checkpoint of another job.
class ACC_API CheckpointSeries {
 public:
  struct Options {
    /// Number of checkpoints to keep; absent: all. At least 1; at least 2 if one may be read while
    /// the next is written.
    std::optional<int> total_limit = {};
  };
  /// runtime: outlives the series. folder: on a file system that all machines see. Throws
  /// Error(invalid_argument) for a limit below 1. Not collective.
  CheckpointSeries(Runtime& runtime, std::string folder, Options options);

  /// Returns the path of the newest complete checkpoint, the same on every rank; empty if there is
  /// none. Waits for a save in flight.
  [[nodiscard]] std::optional<std::string> newest() const;
  /// Saves the next checkpoint, removes the oldest ones beyond the limit, and returns the path. A
  /// checkpoint that cannot be removed is a warning, not an error; each save tries again. With the
  /// setting save_async it is `Runtime::save_async`, which waits for a save in flight; the path
  /// then exists when the save is complete, and oldest ones are removed then.
  std::string save(const Model& model, const Optimizer& optimizer, const SavedState& state) const;

  /// True if the number of steps is a multiple of the setting memory_checkpoint_every, or the ranks
  /// of an elastic job change now, and the launcher gives memory for it. Not collective.
  [[nodiscard]] bool is_memory_due(const Optimizer& optimizer) const;
  /// Begins to copy the state to memory that outlives this process, if `is_memory_due`. Called
  /// after each step, on all ranks. Returns true if it has begun: another thread copies, and sends
  /// the copy to the next machine, while the training goes on; what it has not copied is copied
  /// before it changes. A failure is a warning, and no reason to stop. Not collective. Throws
  /// Error(peer_lost) if the ranks of an elastic job (--elastic_replicas) change now: `rejoin`.
  bool keep_in_memory(const Model& model, const Optimizer& optimizer,
                      const SavedState& state) const;

  /// What `resume` has loaded.
  struct Resumed {
    SavedState state;
    std::string from;  ///< path of the checkpoint, or "memory"
  };
  /// Loads the newest state: that in the memory of the machines, if all of it is whole, whatever
  /// number of ranks has made it, and if its step is not before that of `newest`; else `newest`.
  /// Empty if there is neither. Rank 0 logs which and why, with memory_checkpoint_every.
  /// Collective. Throws what `Runtime::load` throws.
  [[nodiscard]] std::optional<Resumed> resume(Model& model, Optimizer& optimizer) const;

  /// Goes on in this process after Error(peer_lost), in a job that was started with --rejoin
  /// (docs/checkpoints.md, "Rejoin"): waits until the launcher has given the ranks of the processes
  /// that ended to others, makes all process groups anew, and loads what `resume` loads. Model,
  /// units and optimizer stay, as does the memory that the program sees at fixed addresses; what
  /// was begun since the last step is dropped, and settings of the optimizer keep their values.
  /// With --elastic_replicas `Runtime::rank` and `world_size` may be others afterwards. Empty, with
  /// the initial values, if there is nothing to load. The processes that are new call
  /// `resume` as their first collective call after they have made their optimizer. No scope may be
  /// open. Collective, together with them. Throws Error(not_supported) if the launcher replaces no
  /// ranks, on a GPU, for several models, and for initialisers that are called only once if there
  /// is nothing to load, then on all ranks; Error(timeout) if no process was replaced in time. The
  /// groups then stay unusable.
  [[nodiscard]] std::optional<Resumed> rejoin(Model& model, Optimizer& optimizer) const;
  /// True if `error` is Error(peer_lost) and the launcher replaces ranks, so that `rejoin` may go
  /// on.
  [[nodiscard]] bool can_rejoin(const Error& error) const;

 private:
  /// leaves: the ranks of an elastic job change after this step.
  [[nodiscard]] bool is_memory_due(const Optimizer& optimizer, bool leaves) const;
  bool begin_snapshot(const Model& model, const Optimizer& optimizer,
                      const SavedState& saved) const;
  bool is_kept() const;
  [[nodiscard]] std::optional<Resumed> go_back(Model& model, Optimizer& optimizer,
                                               bool can_begin) const;
  [[nodiscard]] std::optional<Resumed> load_newest(Model& model, Optimizer& optimizer) const;
  [[nodiscard]] std::string path_of(std::int64_t number) const;

  Runtime& runtime_;
  std::string folder_;
  Options options_;
};

}  // namespace acc
