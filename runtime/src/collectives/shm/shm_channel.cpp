// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/shm_channel.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "collectives/call_difference.hpp"
#include "collectives/shm/futex.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <thread>

namespace acc::collectives {
namespace {

using namespace std::chrono_literals;

// The size of shared memory cannot be changed, and the seals cannot be removed or extended.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Longest sleep of a wait. Between two sleeps the peer's pidfd and the abort state are checked, so
// this bounds how late the death of a peer is noticed.
constexpr auto kLivenessInterval = 50ms;
constexpr int kPublishPolls = 10'000;  // for the reason that another rank is writing

Awaited awaited(const RankControl& of, const RankControl::Counter& counter, int peer,
                std::uint32_t target) {
  std::size_t index = 0;
  while (index < Awaited::kCounters.size() && &(of.*Awaited::kCounters[index]) != &counter) {
    ++index;
  }
  return {peer, index, target};
}

/// True if the process exists and is not a zombie. For kernels and sandboxes without pidfd_open(2).
bool is_alive(pid_t pid) {
  if (::kill(pid, 0) != 0) {
    return errno != ESRCH;
  }
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat);
  const auto name_end = stat.rfind(')');  // "17 (a name) S 4 ..."
  return name_end == std::string::npos || stat.compare(name_end, 3, ") Z") != 0;
}

}  // namespace

SharedMapping SharedMapping::map(UniqueFd fd, std::size_t nbytes) {
  void* data = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    throw Error(Errc::out_of_memory, fmt::format("cannot map {} bytes of shared memory: {}", nbytes,
                                                 std::strerror(errno)));
  }
  ::madvise(data, nbytes, MADV_HUGEPAGE);  // only a hint: fails where shmem has no huge pages
  ::madvise(data, nbytes, MADV_DONTFORK);  // a child must not change the memory of the ranks
  SharedMapping made;
  made.fd_ = std::move(fd);
  made.data_ = static_cast<std::byte*>(data);
  made.nbytes_ = nbytes;
  return made;
}

SharedMapping SharedMapping::create(std::size_t nbytes) {
  UniqueFd fd(::memfd_create("acc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw Error(Errc::out_of_memory, fmt::format("cannot make {} bytes of shared memory: {}",
                                                 nbytes, std::strerror(errno)));
  }
  return map(std::move(fd), nbytes);
}

SharedMapping SharedMapping::open(UniqueFd fd, std::size_t nbytes) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // fails for files that are not in memory
  struct stat state {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd.get(), &state) != 0 ||
      state.st_size != static_cast<off_t>(nbytes)) {
    throw Error(
        Errc::protocol,
        fmt::format("the descriptor received for the group's shared memory is not a sealed memory "
                    "file (memfd) of {} bytes",
                    nbytes));
  }
  return map(std::move(fd), nbytes);
}

void SharedMapping::replace(SharedMapping&& other) {
  // mremap(2) unmaps what is at the new address and moves the pages in one call.
  void* const moved = ::mremap(data_, nbytes_, nbytes_, MREMAP_MAYMOVE | MREMAP_FIXED, other.data_);
  if (moved == MAP_FAILED) {
    throw Error(Errc::out_of_memory, fmt::format("cannot map {} bytes of shared memory again: {}",
                                                 nbytes_, std::strerror(errno)));
  }
  data_ = std::exchange(other.data_, nullptr);
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      nbytes_(std::exchange(other.nbytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) {
    ::munmap(data_, nbytes_);
  }
}

ShmChannel::ShmChannel(GroupSpec spec) : spec_(std::move(spec)) {
  const auto count = spec_.ranks.size();
  const std::size_t nbytes =
      sizeof(ControlHead) + count * sizeof(RankControl) + count * 2 * kStagingChunk;
  if (count > 1) {
    links_.emplace(spec_);
  }
  mapping_ = spec_.rank == 0 ? make_control_block(nbytes) : take_shared(nbytes);
  head_ = std::launder(reinterpret_cast<ControlHead*>(mapping_.data()));
  ranks_ = std::launder(reinterpret_cast<RankControl*>(mapping_.data() + sizeof(ControlHead)));
  staging_ = mapping_.data() + sizeof(ControlHead) + count * sizeof(RankControl);
  // A private copy: a peer can overwrite the block, but cannot redirect later liveness checks.
  for (int r = 0; r < size(); ++r) {
    pids_.push_back(control(r).pid);
    // Opened while all ranks are alive: a pid could be reused later. A pidfd stays bound to the
    // process, and becomes readable at its end.
    pidfds_.emplace_back(
        r == rank() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pids_.back(), 0)));
  }
  // Spinning helps only if every rank has its own core; otherwise it delays the rank that it waits
  // for.
  spins_ = count <= std::thread::hardware_concurrency() ? 300 : 0;
}

SharedMapping ShmChannel::make_control_block(std::size_t nbytes) const {
  SharedMapping block = SharedMapping::create(nbytes);
  new (block.data()) ControlHead();
  for (int r = 0; r < size(); ++r) {
    auto* const control =
        new (block.data() + sizeof(ControlHead) + static_cast<std::size_t>(r) * sizeof(RankControl))
            RankControl();
    control->pid = r == 0 ? ::getpid() : links_->pid(r);
  }
  give(block);
  return block;
}

void ShmChannel::give(const SharedMapping& mapping) const {
  if (links_) {
    links_->give(mapping.fd(), mapping.nbytes());
  }
}

SharedMapping ShmChannel::make_shared(std::size_t nbytes) const {
  SharedMapping made = SharedMapping::create(nbytes);
  give(made);
  return made;
}

SharedMapping ShmChannel::take_shared(std::size_t nbytes) const {
  return SharedMapping::open(links_->take(nbytes), nbytes);
}

void ShmChannel::close_in_child() noexcept {
  if (links_) {
    links_->close();
  }
  mapping_.close_descriptor();
  for (UniqueFd& each : pidfds_) {
    each.reset();
  }
}

ShmChannel::~ShmChannel() {
  if (mapping_.data() == nullptr) {
    return;
  }
  // The block stays mapped by the peers. A peer that waits for this rank sleeps on one of its
  // counters.
  own().departed.store(1);
  for (auto* counter :
       {&own().posted, &own().finished, &own().chunk_posted, &own().chunk_finished}) {
    futex_wake_all(counter->value);
  }
}

std::byte* ShmChannel::staging(int rank, unsigned which) const noexcept {
  return staging_ + (static_cast<std::size_t>(rank) * 2 + which) * kStagingChunk;
}

bool ShmChannel::reached(const RankControl::Counter& counter, std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(counter.value.load(std::memory_order_acquire) - target) >= 0;
}

void ShmChannel::advance(RankControl::Counter& counter, std::uint32_t value) noexcept {
  // Both accesses are sequentially consistent, like the two in `wait`: either this thread sees the
  // sleeper and wakes it, or the sleeper sees the new value and does not sleep.
  counter.value.store(value);
  if (counter.sleepers.load() != 0) {
    futex_wake_all(counter.value);
  }
}

// Spins first, because a peer on another core usually answers within microseconds, less than a
// futex sleep and wake-up cost. Then sleeps for at most kLivenessInterval at a time; between two
// sleeps it checks for an abort, the end of the peer and the timeout.
void ShmChannel::wait(const RankControl::Counter& counter, std::uint32_t target, int peer,
                      const std::function<std::string()>& what) {
  for (int i = 0; i < spins_; ++i) {
    if (reached(counter, target)) {
      return;
    }
    pause_cpu();
  }
  const auto deadline = std::chrono::steady_clock::now() + spec_.timeout;
  own().awaits.store(awaited(control(peer), counter, peer, target).encode());
  LongWait long_wait(spec_.board.get());
  auto& sleepers = const_cast<RankControl::Counter&>(counter).sleepers;
  while (!reached(counter, target)) {
    // An abort between this check and the sleep wakes no one, but the sleep is short.
    throw_if_aborted();
    sleepers.fetch_add(1);
    const std::uint32_t seen = counter.value.load();
    if (static_cast<std::int32_t>(seen - target) < 0) {
      futex_wait(counter.value, seen, kLivenessInterval);
    }
    sleepers.fetch_sub(1);
    if (reached(counter, target)) {
      break;
    }
    check_peer(peer, counter, target, what);
    check_membership();
    long_wait.goes_on(global_rank(peer));
    if (std::chrono::steady_clock::now() > deadline) {
      int late = -1;
      const std::string reason = reason_of_timeout(peer, what(), late);
      throw_if_aborted();  // asking the store took time: a peer's reason may have come first
      abort(reason, late);
      throw Error(Errc::timeout, reason, late);
    }
  }
  own().awaits.store(0);  // after an error it stays: the timeouts of other ranks have to find it
}

/// A wait that is fulfilled does not count: its rank was stopped in it.
int ShmChannel::awaited_by(int rank) const {
  for (const auto* wait : {&control(rank).awaits, &control(rank).awaits_message}) {
    const Awaited found = Awaited::decode(wait->load());  // a peer may have written anything
    if (found.peer < 0 || found.peer >= size() || found.counter > Awaited::kMessage) {
      continue;
    }
    if (found.counter == Awaited::kMessage ||
        !reached(control(found.peer).*Awaited::kCounters[found.counter], found.target)) {
      return found.peer;
    }
  }
  return -1;
}

ShmChannel::Late ShmChannel::late_rank(int peer) const {
  std::vector<bool> seen(static_cast<std::size_t>(size()));
  seen[static_cast<std::size_t>(rank())] = true;
  for (int late = peer; !seen[static_cast<std::size_t>(late)];) {
    seen[static_cast<std::size_t>(late)] = true;
    const int next = awaited_by(late);
    if (next < 0) {
      return {late, control(late).awaits.load() == 0};
    }
    late = next;
  }
  return {peer, false};  // they wait for each other
}

std::string ShmChannel::reason_of_timeout(int peer, const std::string& what, int& late) const {
  const Late found = late_rank(peer);
  return spec_.reason_of_timeout(peer, what, late, found.rank, found.elsewhere);
}

const char* ShmChannel::end_of(int peer) const {
  const UniqueFd& pidfd = pidfds_[static_cast<std::size_t>(peer)];
  pollfd state{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  const bool dead =
      pidfd ? ::poll(&state, 1, 0) == 1 : !is_alive(pids_[static_cast<std::size_t>(peer)]);
  const bool left = control(peer).departed.load() != 0;
  return dead ? "ended" : left ? "left the group" : nullptr;
}

void ShmChannel::check_membership() {
  if (spec_.check) {
    try {
      spec_.check();
    } catch (const Error& error) {
      throw_if_aborted();
      fail(error.what(), error.rank(), error.code());
    }
  }
}

void ShmChannel::check_peer(int peer, const RankControl::Counter& counter, std::uint32_t target,
                            const std::function<std::string()>& what) {
  const char* end = end_of(peer);
  // The peer may have advanced the counter just before its end, and that still counts. Its end was
  // seen first, so this second look sees the counter's final value.
  if (end != nullptr && !reached(counter, target)) {
    throw_if_aborted();
    fail(fmt::format("rank {} (pid {}) {} before it reached {}", global_rank(peer),
                     pids_[static_cast<std::size_t>(peer)], end, what()),
         global_rank(peer), Errc::peer_lost);
  }
}

/// The reason as some rank wrote it. Not trusted: limited in length, control characters escaped.
std::string ShmChannel::abort_text() const {
  return printable({head_->abort_text.data(), ::strnlen(head_->abort_text.data(), kAbortText)});
}

std::optional<std::string> ShmChannel::failure() const {
  const auto aborted = [this] { return head_->abort_state.load(std::memory_order_acquire) == 2; };
  if (aborted()) {
    return abort_text();
  }
  for (int r = 0; r < size(); ++r) {
    const char* end = r == rank() ? nullptr : end_of(r);
    if (end != nullptr) {
      // A rank that aborts and leaves writes its reason first, so this second look sees it.
      return aborted() ? abort_text()
                       : fmt::format("rank {} (pid {}) {}", global_rank(r),
                                     pids_[static_cast<std::size_t>(r)], end);
    }
  }
  return spec_.members_changed();
}

void ShmChannel::throw_if_aborted() const {
  if (head_->abort_state.load(std::memory_order_acquire) == 2) {
    const std::int32_t rank = head_->abort_rank;
    const bool is_member = std::ranges::find(spec_.ranks, rank) != spec_.ranks.end();
    throw Error(head_->abort_lost == 1 ? Errc::peer_lost : Errc::collective, abort_text(),
                is_member ? std::optional(rank) : std::nullopt);
  }
}

// May race with aborts of other ranks and with `wait` on other threads. Only the winner of the
// exchange writes the reason; readers use it only in state 2.
void ShmChannel::abort(const std::string& reason, int at_fault, Errc code) noexcept {
  aborted_here_ = true;
  std::uint32_t none = 0;
  if (head_->abort_state.compare_exchange_strong(none, 1)) {
    const std::size_t length = std::min(reason.size(), kAbortText - 1);
    std::memcpy(head_->abort_text.data(), reason.data(), length);
    head_->abort_rank = at_fault;
    head_->abort_lost = code == Errc::peer_lost ? 1 : 0;
    head_->abort_state.store(2, std::memory_order_release);
  }
  // This rank may leave at once, and peers that see that look for the reason. Another rank that is
  // writing it needs nanoseconds, unless it is killed meanwhile.
  for (int i = 0; i < kPublishPolls && head_->abort_state.load() != 2; ++i) {
    std::this_thread::yield();
  }
  // Waiters may sleep on any counter of any rank.
  for (int r = 0; r < size(); ++r) {
    RankControl& each = control(r);
    for (auto* counter : {&each.posted, &each.finished, &each.chunk_posted, &each.chunk_finished}) {
      futex_wake_all(counter->value);
    }
  }
}

void ShmChannel::fail(const std::string& reason, std::optional<int> at_fault, Errc code) {
  abort(reason, at_fault.value_or(-1), code);
  throw Error(code, reason, at_fault);
}

bool ShmChannel::all_reached(RankControl::Counter RankControl::*counter,
                             std::uint32_t target) const noexcept {
  for (int r = 0; r < size(); ++r) {
    if (!reached(control(r).*counter, target)) {
      return false;
    }
  }
  return true;
}

void ShmChannel::fail_different(std::uint32_t number, const std::string& group,
                                RankControl::Counter RankControl::*counter, std::uint32_t target,
                                std::chrono::milliseconds limit,
                                const std::function<std::string(int)>& text_of) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!all_reached(counter, target) && !failure() &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::map<std::string, std::vector<int>> ranks_by_call;
  for (int r = 0; r < size(); ++r) {
    if (reached(control(r).*counter, target)) {
      ranks_by_call[text_of(r)].push_back(global_rank(r));
    }
  }
  const CallDifference difference = call_difference(number, group, ranks_by_call);
  fail(difference.reason, difference.at_fault);
}

}  // namespace acc::collectives
