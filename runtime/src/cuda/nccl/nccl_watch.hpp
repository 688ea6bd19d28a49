#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace acc::cuda {

/// What the watch looks after. Both are called on its thread.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Why it cannot go on, if so; a sentence that names the rank at fault where that is known.
  virtual std::optional<std::string> trouble() = 0;
  /// May block until the other groups are ended too. A second call does nothing.
  virtual void end(const std::string& reason) noexcept = 0;
  [[nodiscard]] virtual bool ended() const noexcept = 0;
};

/// One thread a process that looks after all its NCCL groups: NCCL has no event for a peer that
/// died or an error in the background, and a GPU waits for ever. Trouble of one ends all.
class NcclWatch {
 public:
  static NcclWatch& instance();
  void add(Watched* group);
  /// After this returns, nothing of `group` is called any more.
  void remove(Watched* group);

 private:
  void run(const std::stop_token& stop);
  void look();
  std::mutex mutex_;  ///< guards groups_
  std::condition_variable_any changed_;
  std::vector<Watched*> groups_;
  std::jthread thread_;  ///< while there are groups; touched by `add` and `remove`, under life_
  std::mutex life_;
};

}  // namespace acc::cuda
