#pragma once

#include "acc/collectives/process_group.hpp"
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

/// An NCCL communicator that never blocks a thread for good: NCCL works in the background and is
/// polled, with a time limit and an eye on the peers. The watch may `abort` it at any moment.
class Communicator {
 public:
  using Call = std::function<ncclResult_t(ncclComm_t)>;

  /// Connects the ranks of `spec`, whose store carries the unique id. Collective. `host`: the same
  /// ranks. Throws Error(timeout | collective | device) that names who did not come.
  Communicator(const NcclApi& api, const collectives::GroupSpec& spec,
               std::shared_ptr<collectives::ProcessGroup> host);
  /// This rank's part of `parent`, all ranks of which split at once.
  Communicator(Communicator& parent, const collectives::GroupSpec& spec,
               std::shared_ptr<collectives::ProcessGroup> host, int color);
  /// Lets NCCL finish what was issued, within bounds.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] const NcclApi& api() const noexcept { return api_; }

  /// Makes one NCCL call and returns when NCCL has taken it up. `what` is for errors, after which
  /// only `abort` is of use.
  void call(const std::string& what, const Call& function);
  /// What NCCL found wrong in the background. Any thread.
  [[nodiscard]] std::optional<std::string> async_error();
  /// Ends everything that is under way on the device, with undefined results. May return only when
  /// the GPU's other communicators that hang are aborted as well, each by a thread of its own. Any
  /// thread.
  void abort() noexcept;

 private:
  /// How long connecting may take, whatever collectives may.
  [[nodiscard]] std::chrono::milliseconds setup_limit() const;
  void announce() const;
  [[nodiscard]] ncclUniqueId exchange_id();
  void await_split(Communicator& parent, ncclComm_t* child);
  void connect(ncclResult_t result);
  [[nodiscard]] std::optional<ncclResult_t> poll();
  void settle(ncclResult_t result, const std::string& what, std::chrono::milliseconds limit);
  /// Throws when a peer is gone or `deadline` over.
  void check_peers(const std::string& what, std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] std::string absent_ranks() const;
  [[nodiscard]] std::string text(ncclResult_t result) const;

  const NcclApi& api_;
  collectives::GroupSpec spec_;
  std::shared_ptr<collectives::ProcessGroup> host_;
  std::timed_mutex mutex_;     ///< held for every call of NCCL on comm_
  ncclComm_t made_ = nullptr;  ///< where NCCL puts what it connects
  std::atomic<ncclComm_t> comm_ = nullptr;
};

}  // namespace acc::cuda
