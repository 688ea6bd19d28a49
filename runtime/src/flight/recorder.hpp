// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/flight_record.hpp"
#include "acc/base/own_process.hpp"
#include "acc/base/unique_fd.hpp"

#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::flight {

/// Records what this rank is doing and for which unit and phase its last collectives ran. The
/// messages of failed collectives use it, and the launcher reads it from a file after a failure.
/// Recording is a few stores into a shared file mapping, without a system call. The kernel keeps
/// the pages even if this process is killed. One thread writes. The launcher may read at any time,
/// so each entry is published by a final release store.
class Recorder {
 public:
  /// Keeps the record in private memory if `path` is empty, if the file cannot be written (with a
  /// warning), or if another recorder is writing it.
  Recorder(const std::string& path, int rank);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Adds a group and returns its index. Groups beyond `file::kGroups` share the last index.
  /// `ranks` are evenly spaced.
  int add_group(std::string_view name, const std::vector<int>& ranks);
  /// Other ranks take the place of those of a group.
  void set_ranks(int index, const std::vector<int>& ranks) noexcept;

  /// Forgets collectives, scopes and the failure: the groups are made anew, and count from 1. rank:
  /// this rank's number from now on.
  void restart(int rank) noexcept;

  /// Enters a scope, which lasts until `leave` with the same arguments. Scopes of different units
  /// may overlap without being nested.
  void enter(const char* phase, std::string_view unit);
  void leave(const char* phase, std::string_view unit);

  /// Handle of a recorded collective.
  struct Call {
    std::uint64_t number = 0;    ///< over all groups, from 1; chooses the slot in the file
    std::uint32_t sequence = 0;  ///< in its group, from 1
    int group = 0;
    const char* phase = "";
    const std::string* unit = nullptr;  ///< lives as long as the recorder
  };
  /// Records that the program issues a collective in group `group`, in the current scope.
  Call call(int group, const char* kind, std::size_t nbytes);
  /// Returns the last recorded collective; its number is 0 if there is none.
  [[nodiscard]] const Call& last_call() const noexcept { return last_call_; }
  /// Returns a text that is the same on all ranks of a collective's group, and of no other
  /// collective of the job: "shard 0-6/2 41".
  [[nodiscard]] std::string id_of(const Call& call) const;
  /// Records that the program waits for the collective.
  void waits(const Call& call) noexcept;
  /// Records the end of the collective: done or failed.
  void ended(const Call& call, State state) noexcept;
  /// Records that the program destroys its model without an error. A failure after that, until the
  /// next call, is not caused by a peer and is not recorded.
  void leaves() noexcept;
  /// Records that the collective failed with `error`. The record keeps only the first failure.
  void failed(const Call& call, const Error& error) noexcept;
  /// Records the failure of a collective that went on beside the program, without a place.
  void failed(const Error& error) noexcept;

  /// Adds to the time that the current step has waited for collectives of `kind`.
  void waited(std::string_view kind, std::chrono::nanoseconds time) noexcept;
  /// Ends a step: records its duration and the times that it has waited, and `values`, by their
  /// names (training_metrics.hpp).
  void end_step(std::span<const std::pair<std::string_view, double>> values);
  /// Records values that the program reports. Returns false if one of them was left out.
  bool report(std::span<const std::pair<std::string_view, double>> values);
  /// True if no step of the last second has recorded memory categories.
  [[nodiscard]] bool wants_memory() const noexcept;

 private:
  struct Scope {
    const char* phase;
    const std::string* unit;
  };
  void* map(const std::string& path);
  void show_place() noexcept;
  bool set(std::span<const std::pair<std::string_view, double>> values);
  void publish_metrics() noexcept;
  [[nodiscard]] file::FileSlot* slot_of(const Call& call) const noexcept;

  UniqueFd file_;
  ForkHook closes_in_child_{[this] { file_.reset(); }};  ///< with its lock
  void* memory_;
  file::FileHead* head_;
  file::FileFailure* failure_;
  file::FileGroup* groups_;
  file::FileSlot* slots_;
  file::FileMetrics* file_metrics_;
  std::uint64_t number_ = 0;  ///< of the last collective
  Call last_call_;
  std::set<std::string, std::less<>> names_;  ///< units' names; addresses of elements are stable
  std::vector<Scope> scopes_;                 ///< open scopes, the current one last
  Metrics metrics_;
  std::chrono::steady_clock::time_point step_began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point memory_at_{};  ///< last report of memory categories
  // Times that the current step has waited.
  std::chrono::nanoseconds gather_time_{};
  std::chrono::nanoseconds reduce_time_{};
  std::chrono::nanoseconds wait_time_{};
};

/// Enters a scope of the recorder and leaves it in the destructor. `recorder` may be null.
class Scope {
 public:
  Scope(Recorder* recorder, const char* phase, std::string_view unit)
      : recorder_(recorder), phase_(phase), unit_(unit) {
    if (recorder_ != nullptr) {
      recorder_->enter(phase_, unit_);
    }
  }
  ~Scope() {
    if (recorder_ != nullptr) {
      recorder_->leave(phase_, unit_);
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Recorder* recorder_;
  const char* phase_;
  std::string_view unit_;
};

}  // namespace acc::flight
