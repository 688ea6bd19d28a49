// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/communicator.hpp"

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "acc/rendezvous/store.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace acc::cuda {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSetupLimit = 120s;  // for connecting
constexpr std::chrono::milliseconds kFinishLimit = 10s;  // for issued work, in the destructor
constexpr std::chrono::milliseconds kLockLimit = 2s;     // for another thread's NCCL call, in abort
/// Limit of thread blocks (CTAs) per rank if ranks share a GPU. They hang unless the blocks of all
/// ranks are resident at the same time; NCCL's default fits for two ranks. NCCL_MAX_CTAS overrides
/// it.
constexpr int kSharedGpuCtas = 8;
/// 0: NCCL makes calls on threads of its own, which costs a thread start (about 50 us) per call. 1:
/// NCCL makes them on the caller's thread, which then hangs in `connect` if a rank never comes.
constexpr int kBlocking = 0;
constexpr int kBriskPolls = 256;        // polls without a sleep
constexpr int kPollsBetweenPeers = 32;  // polls between two checks of the peers

/// Headers of NCCL before 2.27 do not have the field.
template <typename Config>
void use_zero_sm(Config& config) {
  if constexpr (requires { config.CTAPolicy; }) {
    config.CTAPolicy = 2;  // NCCL_CTA_POLICY_ZERO
  } else {
    throw Error(Errc::not_supported,
                "ACC_NCCL_ZERO_SM=1, but libacc_cuda.so was built with headers of an "
                "NCCL before 2.28");
  }
}

ncclConfig_t configuration(const settings::NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = kBlocking;
  if (options.zero_sm) {
    use_zero_sm(config);
  }
  if (options.split_share) {
    config.splitShare = 1;  // NCCL looks at the parent's
  }
  if (shares_gpus_by_nccl()) {
    config.maxCTAs = kSharedGpuCtas;
  }
  return config;
}

/// Waits between two polls. At first only yields: NCCL accepts most calls within about 50 us, on a
/// thread that it starts for each call, and meanwhile the program cannot issue work.
void pause(int polls) {
  if (polls < kBriskPolls) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(polls < 2 * kBriskPolls ? 50us : 1000us);
  }
}

}  // namespace

Communicator::Communicator(const NcclApi& api, const collectives::GroupSpec& spec,
                           std::shared_ptr<collectives::ProcessGroup> host,
                           const settings::NcclOptions& options)
    : api_(api), spec_(spec), host_(std::move(host)) {
  announce();
  const ncclUniqueId id = exchange_id();
  ncclConfig_t config = configuration(options);
  const ncclResult_t result = api_.comm_init_rank_config(
      &made_, static_cast<int>(spec_.ranks.size()), id, spec_.rank, &config);
  comm_ = made_;
  connect(result);
}

Communicator::Communicator(Communicator& parent, const collectives::GroupSpec& spec,
                           std::shared_ptr<collectives::ProcessGroup> host, int color,
                           const settings::NcclOptions& options)
    : api_(parent.api_), spec_(spec), host_(std::move(host)) {
  announce();
  ncclConfig_t config = configuration(options);
  comm_ = static_cast<ncclComm_t>(parent.make("splitting", [&](ncclComm_t comm, void** child) {
    return api_.comm_split(comm, color, spec_.rank, reinterpret_cast<ncclComm_t*>(child), &config);
  }));
  connect(ncclSuccess);
}

void Communicator::connect(ncclResult_t result) {
  try {
    settle(result, "connecting", setup_limit());
  } catch (const Error&) {
    abort();
    throw;
  }
}

// finalize and destroy are not called on a communicator that has failed or that waits for a dead
// peer, because they would wait for its work. Such a communicator is aborted.
Communicator::~Communicator() {
  const auto finished = [this](ncclResult_t result) {
    const auto deadline = Clock::now() + kFinishLimit;
    for (int polls = 0; result == ncclInProgress && Clock::now() < deadline; ++polls) {
      pause(polls);
      result = poll().value_or(ncclSuccess);
    }
    return result == ncclSuccess;
  };
  if (comm_ == nullptr) {
    return;
  }
  const ncclResult_t state = poll().value_or(ncclSuccess);
  if (state == ncclInProgress && host_->failure()) {
    abort();  // the call in progress waits for a peer that is gone
  } else if (finished(state) && finished(api_.comm_finalize(comm_))) {
    api_.comm_destroy(comm_);
  } else {
    abort();
  }
}

std::chrono::milliseconds Communicator::setup_limit() const {
  return std::min(spec_.timeout, kSetupLimit);
}

void Communicator::announce() const {
  spec_.store->set(fmt::format("{}/nccl/came/{}", spec_.name, spec_.rank), "1");
}

ncclUniqueId Communicator::exchange_id() {
  const std::string key = spec_.name + "/nccl/id";
  ncclUniqueId id{};
  if (spec_.rank == 0) {
    const ncclResult_t result = api_.get_unique_id(&id);
    if (result != ncclSuccess) {
      throw Error(Errc::device, fmt::format("ncclGetUniqueId failed: {}", text(result)));
    }
    spec_.store->set(key, {id.internal, sizeof(id.internal)});
    return id;
  }
  // Polls instead of a blocking get, so that a failed peer ends the wait at once.
  const auto deadline = Clock::now() + setup_limit();
  while (!spec_.store->check(std::span(&key, 1))) {
    std::this_thread::sleep_for(1ms);
    check_peers("connecting", deadline);
  }
  const std::string bytes = spec_.store->get(key, setup_limit());
  if (bytes.size() != sizeof(id.internal)) {
    throw Error(Errc::protocol, fmt::format("store key {} holds {} bytes, an NCCL id has {}", key,
                                            bytes.size(), sizeof(id.internal)));
  }
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  return id;
}

std::optional<ncclResult_t> Communicator::poll() {
  const std::lock_guard lock(mutex_);
  return state();
}

std::optional<ncclResult_t> Communicator::state() {
  if (comm_ == nullptr) {
    return std::nullopt;
  }
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = api_.comm_get_async_error(comm_, &found);
  return asked == ncclSuccess ? found : asked;
}

void Communicator::call(const std::string& what, const Call& function) {
  // If the communicator is aborted, `settle` polls, finds none, and throws the reason.
  ncclResult_t result = ncclInProgress;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) {
      result = function(comm_);
    }
  }
  settle(result, what, spec_.timeout);
}

void* Communicator::make(const std::string& what, const Maker& function) {
  auto result = std::make_unique<void*>(nullptr);
  try {
    call(what, [&](ncclComm_t comm) { return function(comm, result.get()); });
  } catch (const Error&) {
    (void)result.release();  // leaked on purpose: a thread of NCCL may still write it
    throw;
  }
  return *result;
}

// ncclSuccess does not say that a call is done. ncclCommSplit, and ncclCommWindowRegister from
// NCCL 2.28 on, return it while a thread of NCCL still works on the call (ncclGroupEndInternal
// gives ncclInProgress, which NCCLCHECK passes over). The state alone tells.
void Communicator::settle(ncclResult_t result, const std::string& what,
                          std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (int polls = 0; result == ncclSuccess || result == ncclInProgress; ++polls) {
    const auto state = poll();
    if (!state) {
      throw Error(Errc::collective, host_->failure().value_or(fmt::format(
                                        "{}: aborted before {}", host_->describe(), what)));
    }
    if (*state == ncclSuccess) {
      return;
    }
    result = *state;
    if (result == ncclInProgress) {
      pause(polls);
      if (polls % kPollsBetweenPeers == kPollsBetweenPeers - 1) {
        check_peers(what, deadline);
      }
    }
  }
  const std::string reason = text(result);
  throw Error(Errc::collective,
              host_->failure().value_or(fmt::format("NCCL failed in {} over ranks {}: {}", what,
                                                    fmt::join(spec_.ranks, ","), reason)));
}

void Communicator::check_peers(const std::string& what, Clock::time_point deadline) {
  if (const auto reason = host_->failure()) {
    throw Error(Errc::collective, *reason);
  }
  if (Clock::now() > deadline) {
    const std::string reason =
        fmt::format("timeout: NCCL did not finish {} over ranks {} in time{}", what,
                    fmt::join(spec_.ranks, ","), absent_ranks());
    host_->abort(reason, Errc::collective);
    throw Error(Errc::timeout, reason);
  }
}

std::string Communicator::absent_ranks() const {
  std::vector<int> absent;
  for (std::size_t r = 0; r < spec_.ranks.size(); ++r) {
    const std::string key = fmt::format("{}/nccl/came/{}", spec_.name, r);
    try {
      if (!spec_.store->check(std::span(&key, 1))) {
        absent.push_back(spec_.ranks[r]);
      }
    } catch (const Error&) {  // the store is unreachable: nothing is known about this rank
    }
  }
  return absent.empty() ? "" : fmt::format("; rank {} did not join", fmt::join(absent, ","));
}

// NCCL's last error has details (host, socket, CUDA error) that the result code lacks.
std::string Communicator::text(ncclResult_t result) const {
  const char* last = api_.get_last_error(nullptr);
  const bool said = last != nullptr && *last != '\0';
  return fmt::format("{}{}{}{}", api_.get_error_string(result), said ? " (" : "", said ? last : "",
                     said ? ")" : "");
}

std::optional<std::string> Communicator::async_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    return std::nullopt;  // a call is being made, perhaps one that hangs; it reports its own errors
  }
  const auto found = state();
  if (!found || *found == ncclSuccess || *found == ncclInProgress) {
    return std::nullopt;
  }
  return text(*found);
}

// ncclCommAbort runs without the mutex. It frees GPU memory, which waits for all kernels on the
// GPU, also those of other communicators that hang until they are aborted on other threads.
void Communicator::abort() noexcept {
  ncclComm_t comm = nullptr;
  {
    // Another thread may hold the lock in an NCCL call that hangs on the GPU until this abort.
    // After the limit the abort continues without the lock.
    const std::unique_lock lock(mutex_, kLockLimit);
    comm = comm_.exchange(nullptr);
  }
  if (comm != nullptr) {
    api_.comm_abort(comm);
  }
}

}  // namespace acc::cuda
