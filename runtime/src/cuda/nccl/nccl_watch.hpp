// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace acc::cuda {

/// Interface of a group to the watch.
class Watched {
 public:
  virtual ~Watched() = default;
  /// The reason why the group cannot go on, if there is one; it names the rank at fault if that is
  /// known. Called on the watch's thread.
  virtual std::optional<std::string> trouble() = 0;
  /// Why the group's ranks can no longer meet, as the host knows it, also if no collective waits.
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
  /// Aborts the group. May block until the other groups are aborted too. A second call does
  /// nothing. Called on a thread of the watch.
  virtual void end(const std::string& reason) noexcept = 0;
  [[nodiscard]] virtual bool ended() const noexcept = 0;
};

/// One thread per process that polls all of its NCCL groups every 100 ms. Polling is needed because
/// NCCL reports neither a dead peer nor a background error by itself, and the GPU would wait
/// forever. Trouble of one group ends all groups, since they share the GPU.
class NcclWatch {
 public:
  static NcclWatch& instance();
  void add(Watched* group);
  /// After this returns, `group` is not called any more.
  void remove(Watched* group);

 private:
  void run(const std::stop_token& stop);
  void look();
  std::mutex mutex_;  ///< guards groups_
  std::condition_variable_any changed_;
  std::vector<Watched*> groups_;
  std::jthread thread_;  ///< runs while there are groups; guarded by life_
  std::mutex life_;
};

}  // namespace acc::cuda
