// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// A folder that is either complete or absent, also when it replaces an older one. It is filled
/// under the name "<target>.acc-tmp.<id>" and then exchanged with the target in one step. Any
/// number of processes on any machines may fill it at once. One of them calls `begin` and `commit`.
/// A target may also be a group of objects (`is_object`): they are written under its name, after
/// `begin` has returned, and never replace complete ones; from `begin` to `commit` an object
/// ".acc-unfinished" is among them.
/// The files replaced_folder.cpp and object_group.cpp describe each step and what a crash leaves.
namespace acc::checkpoint {

/// Action of a commit if the target already exists.
enum class Existing {
  replace,
  refuse,  ///< the target is new: only another job can have made a folder with that name
};

/// One kind of target of an AtomicFolder: a folder of a file system, or a group of objects.
class AtomicTarget;

class AtomicFolder {
 public:
  /// `is_ours` returns true if a file, given by its path in the folder ("optimizer_0/.metadata"),
  /// may be part of such a folder. A folder with any other file is never replaced or removed.
  /// Symbolic links in `target` are followed.
  ///
  /// `id` identifies this attempt to fill the folder: the same in all its processes, and different
  /// in every other attempt. A process that was given up as dead and wakes up later (on a machine
  /// that hung) then finds its temporary folder gone, and does not write into its successor's.
  AtomicFolder(const std::filesystem::path& target,
               std::function<bool(const std::string& path)> is_ours, std::uint32_t id = 0,
               Existing existing = Existing::replace);
  AtomicFolder(AtomicFolder&&) noexcept;
  ~AtomicFolder();

  [[nodiscard]] const std::filesystem::path& target() const noexcept;
  [[nodiscard]] const std::filesystem::path& temporary() const noexcept;

  /// Called by every process, in any order. Creates the temporary folder, and `folders` in it,
  /// unless another process has. Throws Error(config) if this object created the temporary folder
  /// earlier and it is gone: another attempt has taken over.
  void make(const std::vector<std::string>& folders = {});
  /// Called by the process that will commit, at any time before it does. Completes the replacement
  /// in which a predecessor was killed, and removes what other predecessors left. Throws
  /// Error(config) if the target holds files that are not ours, Error(not_supported) if it is a
  /// mount point. Leftovers that cannot be removed cause a warning, and the next attempt tries
  /// again.
  void begin();
  /// Throws Error(config) if the temporary folder was made and is gone: another job, or a later
  /// attempt of this one, has taken the target over.
  void check_there() const;
  /// Called after all processes have filled the folder. Flushes its subfolders, exchanges it with
  /// the target, and removes the older folder (a failure to do so is a warning). On a file system
  /// that cannot exchange folders, the new one is "<target>.acc-new" until the older one is out of
  /// its way. A failure on the way throws Error(config) and leaves "<target>.acc-new" complete.
  void commit();
  /// Removes the temporary folder. Called after all processes have stopped writing.
  void abandon() noexcept;
  /// Returns the path of the complete folder: the target, or its newer form "<target>.acc-new" if a
  /// commit was killed on a file system that cannot exchange folders.
  [[nodiscard]] std::filesystem::path current() const;

 private:
  std::unique_ptr<AtomicTarget> target_;
};

/// Removes a folder and all in it; does nothing if it does not exist. The folder loses its name
/// first, so that a crash on the way leaves "<path>.acc-tmp.removed", which the next AtomicFolder
/// with that target or the next commit to its SeriesFolder removes. Throws Error(config) with the
/// first reason. If the folder cannot be renamed, it stays whole; otherwise as much of it as
/// possible is deleted.
void remove_at_once(const std::filesystem::path& folder);

}  // namespace acc::checkpoint
