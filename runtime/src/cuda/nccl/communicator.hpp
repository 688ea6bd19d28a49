// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/settings/sharding_settings.hpp"
#include "collectives/group_spec.hpp"
#include "cuda/nccl/nccl_api.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace acc::cuda {

/// Owns an NCCL communicator in non-blocking mode (ncclConfig_t::blocking = 0): NCCL works in the
/// background, and this class polls its state after every call, with a time limit, while it
/// watches the peers. So no thread hangs in NCCL when a peer dies. The watch may call `abort` at
/// any time, from its own thread.
class Communicator {
 public:
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  using Maker = std::function<ncclResult_t(ncclComm_t, void** result)>;

  /// Connects the ranks of `spec`; rank 0 passes the unique id through the store. Collective.
  /// `host`: a group of the same ranks on host memory. Throws Error(timeout | collective | device),
  /// which names the ranks that did not join.
  Communicator(const NcclApi& api, const collectives::GroupSpec& spec,
               std::shared_ptr<collectives::ProcessGroup> host,
               const settings::NcclOptions& options);
  /// Splits `parent` (ncclCommSplit) and keeps the part that this rank belongs to. Collective over
  /// the ranks of `parent`. `color`: equal on the ranks of one part.
  Communicator(Communicator& parent, const collectives::GroupSpec& spec,
               std::shared_ptr<collectives::ProcessGroup> host, int color,
               const settings::NcclOptions& options);
  /// Waits up to 10 s for NCCL to finish what was issued, then destroys the communicator or aborts
  /// it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] const NcclApi& api() const noexcept { return api_; }

  /// Makes one NCCL call and returns when NCCL has accepted it, which is before it has run on the
  /// GPU. `what` describes the call in errors. After an error only `abort` may be called.
  void call(const std::string& what, const Call& function);
  /// The same for a call that makes a handle. Returns the handle, which may be null.
  [[nodiscard]] void* make(const std::string& what, const Maker& function);
  /// An error that NCCL found in the background. Any thread.
  [[nodiscard]] std::optional<std::string> async_error();
  /// Ends the communicator's kernels on the GPU, with undefined results. May block until other
  /// hanging communicators of the GPU are aborted too, so several must be aborted on separate
  /// threads. Any thread.
  void abort() noexcept;

 private:
  /// Time limit for connecting: the group's timeout, at most 120 s.
  [[nodiscard]] std::chrono::milliseconds setup_limit() const;
  /// Publishes in the store that this rank has come, for `absent_ranks` of the others.
  void announce() const;
  [[nodiscard]] ncclUniqueId exchange_id();
  /// Waits until the communicator is connected; aborts it on failure.
  void connect(ncclResult_t result);
  /// State of the last call. Empty if the communicator is aborted.
  [[nodiscard]] std::optional<ncclResult_t> poll();
  /// The same for a caller that holds the mutex.
  [[nodiscard]] std::optional<ncclResult_t> state();
  /// Polls until NCCL is no longer in progress; throws on failure, timeout, or a failure of the
  /// host group.
  void settle(ncclResult_t result, const std::string& what, std::chrono::milliseconds limit);
  /// Throws if the host group has failed (a peer has ended or aborted) or `deadline` has passed.
  void check_peers(const std::string& what, std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] std::string absent_ranks() const;
  [[nodiscard]] std::string text(ncclResult_t result) const;

  const NcclApi& api_;
  collectives::GroupSpec spec_;
  std::shared_ptr<collectives::ProcessGroup> host_;
  std::timed_mutex mutex_;                  ///< held during every call of NCCL on comm_
  ncclComm_t made_ = nullptr;               ///< output of ncclCommInitRankConfig
  std::atomic<ncclComm_t> comm_ = nullptr;  ///< null before creation and after an abort
};

}  // namespace acc::cuda
