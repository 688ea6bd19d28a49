#include "collectives/shm/shm_channel.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/shm/descriptor_server.hpp"
#include "collectives/shm/futex.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <thread>

namespace acc::collectives {
namespace {

using namespace std::chrono_literals;

// A dead peer is noticed by its pidfd between two sleeps; this bounds how late.
constexpr auto kLivenessInterval = 50ms;
// After so many sleeps a wait is one that others are told of.
constexpr int kLongWait = 4;

void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::string descriptor_path(int pid, int fd) {
  return fmt::format("/proc/{}/fd/{}", pid, fd);
}

UniqueFd reopen(int pid, int fd) {
  return UniqueFd(::open(descriptor_path(pid, fd).c_str(), O_RDWR | O_CLOEXEC));
}

/// For kernels and sandboxes without pidfds. A process that ended and that nobody reaped is dead.
bool is_alive(pid_t pid) {
  if (::kill(pid, 0) != 0) {
    return errno != ESRCH;
  }
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat);
  const auto name_end = stat.rfind(')');  // "17 (a name) S 4 …"
  return name_end == std::string::npos || stat.compare(name_end, 3, ") Z") != 0;
}

/// Tells the board of a wait that takes long. After a wait that failed the board keeps it: others,
/// whose time is up a little later, still have to ask.
class LongWait {
 public:
  LongWait(WaitBoard* board, int rank) : board_(board), rank_(rank) {}
  ~LongWait() {
    if (told_ && std::uncaught_exceptions() == exceptions_) {
      board_->waits_for(WaitBoard::kNobody);
    }
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  void goes_on() noexcept {
    if (board_ != nullptr && ++sleeps_ == kLongWait) {
      told_ = true;
      board_->waits_for(rank_);
    }
  }

 private:
  WaitBoard* board_;
  int rank_;
  int sleeps_ = 0;
  bool told_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

SharedMapping SharedMapping::map(UniqueFd fd, std::size_t nbytes) {
  void* data = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    throw Error(Errc::out_of_memory, fmt::format("cannot map {} bytes of shared memory: {}", nbytes,
                                                 std::strerror(errno)));
  }
  ::madvise(data, nbytes, MADV_HUGEPAGE);
  SharedMapping made;
  made.fd_ = std::move(fd);
  made.data_ = static_cast<std::byte*>(data);
  made.nbytes_ = nbytes;
  return made;
}

SharedMapping SharedMapping::create(std::size_t nbytes) {
  UniqueFd fd(::memfd_create("acc", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
    throw Error(Errc::out_of_memory, fmt::format("cannot make {} bytes of shared memory: {}",
                                                 nbytes, std::strerror(errno)));
  }
  if (!reopen(::getpid(), fd.get())) {
    serve_descriptor(fd.get());
  }
  return map(std::move(fd), nbytes);
}

SharedMapping SharedMapping::open(int pid, int fd, std::size_t nbytes) {
  const std::string path = descriptor_path(pid, fd);
  UniqueFd opened = reopen(pid, fd);
  if (!opened) {
    opened = ask_for_descriptor(pid, fd);
  }
  if (!opened) {
    throw Error(Errc::collective,
                fmt::format("cannot open the group's shared memory {}: {} (ranks of one host must "
                            "run as one user and see each other's processes)",
                            path, std::strerror(errno)));
  }
  return map(std::move(opened), nbytes);
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
  const std::string key = spec_.name + "/shm";
  if (spec_.rank == 0) {
    mapping_ = SharedMapping::create(nbytes);
    new (mapping_.data()) ControlHead();
    for (std::size_t r = 0; r < count; ++r) {
      new (mapping_.data() + sizeof(ControlHead) + r * sizeof(RankControl)) RankControl();
    }
    if (count > 1) {
      spec_.store->set(key, fmt::format("{} {}", ::getpid(), mapping_.fd()));
    }
  } else {
    const std::string where = spec_.store->get(key, spec_.timeout);
    int pid = 0;
    int fd = -1;
    if (std::sscanf(where.c_str(), "%d %d", &pid, &fd) != 2) {
      throw Error(Errc::protocol,
                  fmt::format("store key {} holds '{}', expected 'PID FD'", key, where));
    }
    mapping_ = SharedMapping::open(pid, fd, nbytes);
  }
  head_ = std::launder(reinterpret_cast<ControlHead*>(mapping_.data()));
  ranks_ = std::launder(reinterpret_cast<RankControl*>(mapping_.data() + sizeof(ControlHead)));
  staging_ = mapping_.data() + sizeof(ControlHead) + count * sizeof(RankControl);
  pidfds_.resize(count);
  // Spinning pays only where every rank has a core of its own.
  spins_ = count <= std::thread::hardware_concurrency() ? 300 : 0;
  own().pid.store(::getpid());
}

ShmChannel::~ShmChannel() {
  if (mapping_.data() == nullptr) {
    return;
  }
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
  counter.value.store(value);
  if (counter.sleepers.load() != 0) {
    futex_wake_all(counter.value);
  }
}

void ShmChannel::wait(const RankControl::Counter& counter, std::uint32_t target, int peer,
                      const std::function<std::string()>& what) {
  for (int i = 0; i < spins_; ++i) {
    if (reached(counter, target)) {
      return;
    }
    pause_cpu();
  }
  const auto deadline = std::chrono::steady_clock::now() + spec_.timeout;
  LongWait long_wait(spec_.board.get(), global_rank(peer));
  auto& sleepers = const_cast<RankControl::Counter&>(counter).sleepers;
  while (!reached(counter, target)) {
    throw_if_aborted();
    sleepers.fetch_add(1);
    const std::uint32_t seen = counter.value.load();
    if (static_cast<std::int32_t>(seen - target) < 0) {
      futex_wait(counter.value, seen, kLivenessInterval);
    }
    sleepers.fetch_sub(1);
    if (reached(counter, target)) {
      return;
    }
    check_peer(peer, counter, target, what);
    long_wait.goes_on();
    if (std::chrono::steady_clock::now() > deadline) {
      int late = -1;
      const std::string reason = spec_.reason_of_timeout(peer, what(), late);
      throw_if_aborted();
      abort(reason, late);
      throw Error(Errc::timeout, reason, late);
    }
  }
}

const char* ShmChannel::end_of(int peer) const {
  const std::int32_t pid = control(peer).pid.load();
  if (pid == 0) {
    return nullptr;
  }
  const std::lock_guard lock(pidfds_mutex_);
  auto& pidfd = pidfds_[static_cast<std::size_t>(peer)];
  if (!pidfd) {
    pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  }
  pollfd state{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  const bool dead = pidfd ? ::poll(&state, 1, 0) == 1 : !is_alive(pid);
  const bool left = control(peer).departed.load() != 0;
  return dead ? "ended" : left ? "left the group" : nullptr;
}

void ShmChannel::check_peer(int peer, const RankControl::Counter& counter, std::uint32_t target,
                            const std::function<std::string()>& what) {
  const char* end = end_of(peer);
  // What it did before its end still counts: look again after having seen the end.
  if (end != nullptr && !reached(counter, target)) {
    throw_if_aborted();
    fail(fmt::format("rank {} (pid {}) {} before it came to {}", global_rank(peer),
                     control(peer).pid.load(), end, what()),
         global_rank(peer));
  }
}

/// As another rank wrote it.
std::string ShmChannel::abort_text() const {
  return printable({head_->abort_text.data(), ::strnlen(head_->abort_text.data(), kAbortText)});
}

std::optional<std::string> ShmChannel::failure() const {
  if (head_->abort_state.load(std::memory_order_acquire) == 2) {
    return abort_text();
  }
  for (int r = 0; r < size(); ++r) {
    const char* end = r == rank() ? nullptr : end_of(r);
    if (end != nullptr) {
      return fmt::format("rank {} (pid {}) {}", global_rank(r), control(r).pid.load(), end);
    }
  }
  return std::nullopt;
}

void ShmChannel::throw_if_aborted() const {
  if (head_->abort_state.load(std::memory_order_acquire) == 2) {
    throw Error(Errc::collective, abort_text(),
                head_->abort_rank >= 0 ? std::optional<int>(head_->abort_rank) : std::nullopt);
  }
}

void ShmChannel::abort(const std::string& reason, int at_fault) noexcept {
  aborted_here_ = true;
  std::uint32_t none = 0;
  if (head_->abort_state.compare_exchange_strong(none, 1)) {
    const std::size_t length = std::min(reason.size(), kAbortText - 1);
    std::memcpy(head_->abort_text.data(), reason.data(), length);
    head_->abort_rank = at_fault;
    head_->abort_state.store(2, std::memory_order_release);
  }
  for (int r = 0; r < size(); ++r) {
    RankControl& each = control(r);
    for (auto* counter : {&each.posted, &each.finished, &each.chunk_posted, &each.chunk_finished}) {
      futex_wake_all(counter->value);
    }
  }
}

void ShmChannel::fail(const std::string& reason, std::optional<int> at_fault) {
  abort(reason, at_fault.value_or(-1));
  throw Error(Errc::collective, reason, at_fault);
}

}  // namespace acc::collectives
