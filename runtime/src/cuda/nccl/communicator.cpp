#include "cuda/nccl/communicator.hpp"

#include "acc/base/error.hpp"
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
constexpr int kBriskPolls = 256;        // polls without a sleep
constexpr int kPollsBetweenPeers = 32;  // polls between two checks of the peers

ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const char* sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (sharing != nullptr && std::string_view(sharing) == "1") {
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
                           std::shared_ptr<collectives::ProcessGroup> host)
    : api_(api), spec_(spec), host_(std::move(host)) {
  announce();
  const ncclUniqueId id = exchange_id();
  ncclConfig_t config = configuration();
  const ncclResult_t result = api_.comm_init_rank_config(
      &made_, static_cast<int>(spec_.ranks.size()), id, spec_.rank, &config);
  comm_ = made_;
  connect(result);
}

Communicator::Communicator(Communicator& parent, const collectives::GroupSpec& spec,
                           std::shared_ptr<collectives::ProcessGroup> host, int color)
    : api_(parent.api_), spec_(spec), host_(std::move(host)) {
  announce();
  ncclConfig_t config = configuration();
  auto child = std::make_unique<ncclComm_t>();  // written by a thread of NCCL
  try {
    parent.call("splitting", [&](ncclComm_t comm) {
      return api_.comm_split(comm, color, spec_.rank, child.get(), &config);
    });
    await_split(parent, child.get());
  } catch (const Error&) {
    (void)child.release();  // leaked on purpose: that thread may still write it
    throw;
  }
  connect(poll().value_or(ncclInternalError));
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

// There is no child communicator to poll yet, so errors are read from the parent.
void Communicator::await_split(Communicator& parent, ncclComm_t* child) {
  const auto deadline = Clock::now() + setup_limit();
  for (int polls = 0; __atomic_load_n(child, __ATOMIC_ACQUIRE) == nullptr; ++polls) {
    const auto state = parent.poll();
    if (!state || (*state != ncclSuccess && *state != ncclInProgress)) {
      throw Error(Errc::collective, fmt::format("NCCL could not split {}: {}", host_->describe(),
                                                state ? text(*state) : "aborted"));
    }
    pause(polls);
    check_peers("splitting", deadline);
  }
  comm_ = *child;
}

std::optional<ncclResult_t> Communicator::poll() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return std::nullopt;
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.comm_get_async_error(comm_, &state);
  return asked == ncclSuccess ? state : asked;
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

void Communicator::settle(ncclResult_t result, const std::string& what,
                          std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (int polls = 0; result == ncclInProgress; ++polls) {
    const auto state = poll();
    if (!state) {
      throw Error(Errc::collective, host_->failure().value_or(fmt::format(
                                        "{}: aborted before {}", host_->describe(), what)));
    }
    result = *state;
    if (result == ncclInProgress) {
      pause(polls);
      if (polls % kPollsBetweenPeers == kPollsBetweenPeers - 1) {
        check_peers(what, deadline);
      }
    }
  }
  if (result != ncclSuccess) {
    const std::string reason = text(result);
    throw Error(Errc::collective,
                host_->failure().value_or(fmt::format("NCCL failed in {} over ranks {}: {}", what,
                                                      fmt::join(spec_.ranks, ","), reason)));
  }
}

void Communicator::check_peers(const std::string& what, Clock::time_point deadline) {
  if (const auto reason = host_->failure()) {
    throw Error(Errc::collective, *reason);
  }
  if (Clock::now() > deadline) {
    const std::string reason =
        fmt::format("timeout: NCCL did not finish {} over ranks {} in time{}", what,
                    fmt::join(spec_.ranks, ","), absent_ranks());
    host_->abort(reason);
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
  const auto state = poll();
  if (!state || *state == ncclSuccess || *state == ncclInProgress) {
    return std::nullopt;
  }
  return text(*state);
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
