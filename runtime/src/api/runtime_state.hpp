#pragma once

#include "acc/runtime.hpp"
#include "api/activation_store.hpp"
#include "device/open_device.hpp"
#include "sharding/groups.hpp"
#include "trace/tracer.hpp"

#include <memory>

namespace acc::rendezvous {
class Store;
}

namespace acc::detail {

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

 private:
  void start_trace();
};

/// Refuses by name what the settings ask for and this build or version cannot do.
void check_supported(const plugins::RuntimeSettings& settings);

}  // namespace acc::detail
