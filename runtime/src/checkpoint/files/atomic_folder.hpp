#pragma once

#include "acc/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// A folder that is complete or absent, also when it replaces an older one: it is filled under the
/// name "<target>.acc-tmp.<id>" and then exchanged with the target in one step. Any number of
/// processes on any machines fills it at once; one of them begins and commits.
namespace acc::checkpoint {

/// The action of a commit where the target is already there.
enum class Existing {
  replace,
  refuse,  ///< the target is new: a folder of that name can only be another job's
};

class AtomicFolder {
 public:
  /// `is_ours` tells whether a file, by its path in the folder ("optimizer_0/.metadata"), may lie
  /// in such a folder: a folder with any other is never replaced or removed. Links in `target` are
  /// followed. `id`: of this attempt to fill it and of no other, the same in all its processes, so
  /// that one that was given up for dead and wakes up (a machine that hung) finds its own temporary
  /// folder gone, instead of writing into its successor's.
  AtomicFolder(const std::filesystem::path& target,
               std::function<bool(const std::string& path)> is_ours, std::uint32_t id = 0,
               Existing existing = Existing::replace);

  [[nodiscard]] const std::filesystem::path& target() const noexcept { return target_; }
  [[nodiscard]] const std::filesystem::path& temporary() const noexcept { return temporary_; }

  /// Every process, in any order: makes the temporary folder, and folders in it, unless another
  /// did. Throws Error(config) where this object made it earlier and it is gone since: another
  /// attempt has taken over.
  void make(const std::vector<std::string>& folders = {});
  /// The process that will commit, at any time before that: completes the replacement that a
  /// predecessor was killed in, removes what other predecessors left. Throws Error(config) where
  /// the target holds files that are not ours, or is where a file system is mounted. What cannot be
  /// removed is a warning, and the next attempt tries again.
  void begin();
  /// Throws Error(config) where the temporary folder was made and is gone: another job, or a later
  /// attempt of this one, has taken the target over.
  void check_there() const;
  /// After all have filled it: flushes its folders, exchanges, removes the older folder (a warning
  /// where that fails). On a file system that cannot exchange the two, the new folder is
  /// "<target>.acc-new" until the older one is out of its way; a failure on the way throws
  /// Error(config) and leaves it there, complete.
  void commit();
  /// After all have stopped: removes the temporary folder.
  void abandon() noexcept;
  /// Path of the complete folder: the target, or its newer form "<target>.acc-new" where a commit
  /// was killed on a file system that cannot exchange folders.
  [[nodiscard]] std::filesystem::path current() const;

 private:
  void discard(const std::filesystem::path& folder) const;
  void remove_predecessors() const;
  void check_ours(const std::filesystem::path& folder) const;
  [[nodiscard]] Error taken_over() const;
  void name_new() const;
  void replace_in_steps() const;
  void put_new_in_place() const;

  std::filesystem::path target_, temporary_, new_;
  std::function<bool(const std::string&)> is_ours_;
  Existing existing_;
  bool made_ = false;
};

/// Removes a folder and all in it; nothing where there is none. It is gone under its name from the
/// first moment on: a kill on the way leaves "<path>.acc-tmp.removed", which the next AtomicFolder
/// of that name or commit to its SeriesFolder removes. Throws Error(config) with the first reason:
/// where the folder cannot lose its name it stays whole, else all of it that can be removed is.
void remove_at_once(const std::filesystem::path& folder);

}  // namespace acc::checkpoint
