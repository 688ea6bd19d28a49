#pragma once

#include "acc/runtime.hpp"
#include "api/activation_store.hpp"
#include "checkpoint/files/atomic_folder.hpp"
#include "device/open_device.hpp"
#include "sharding/groups.hpp"
#include "trace/tracer.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {
class Store;
}

namespace acc::detail {

/// A folder of checkpoints, as this job last saw it.
struct KnownSeries {
  std::optional<std::int64_t> last;  ///< highest number; -1 in an empty folder
  std::string warned;                ///< what could not be removed, as it was last reported
};

/// What one process has of the job: settings, the device, the store, the groups.
class RuntimeState {
 public:
  /// `store`: how the ranks find each other; may be null for one rank.
  RuntimeState(const plugins::RuntimeSettings& settings, std::unique_ptr<rendezvous::Store> store);
  ~RuntimeState();

  plugins::RuntimeSettings settings;
  device::Opened compute;
  std::unique_ptr<rendezvous::Store> store;
  sharding::Groups groups;
  std::shared_ptr<trace::Tracer> tracer;         ///< null: no trace
  std::shared_ptr<ActivationStore> activations;  ///< null until something is kept
  /// Of the next save: the same on all ranks, and another one than that of any save before.
  std::uint32_t save_id = 0;
  std::map<std::string, KnownSeries> series;  ///< rank 0's, by the folder's absolute path

  /// `Runtime::save`; `existing`: the action where the directory is already there.
  void save(const std::string& directory, std::span<const Trained> parts, const SavedState& state,
            checkpoint::Existing existing);

 private:
  void start_trace();
};

/// Refuses by name what the settings ask for and this build or version cannot do.
void check_supported(const plugins::RuntimeSettings& settings);

}  // namespace acc::detail
