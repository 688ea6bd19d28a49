// SPDX-License-Identifier: Apache-2.0
#include "acc/base/membership_page.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

namespace acc {

namespace {

constexpr std::size_t kPageBytes = 8192;

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

}  // namespace

/// Zero-filled memory is a page in epoch 0 that no worker has joined.
struct MembershipPage::Layout {
  std::atomic<std::uint32_t> changes;  ///< of the next five; waiters sleep on it
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> ended;  ///< 1 + number of the last epoch that has ended; 0: none
  std::atomic<std::uint32_t> over;   ///< 1: `reason` is written
  std::atomic<std::uint32_t> lost;   ///< 1 + number of the last epoch that has lost ranks; 0: none
  std::atomic<std::uint32_t> last;   ///< 1: no epoch follows
  Changes changes_of_launcher;
  std::uint32_t first;
  std::array<char, 488> reason;                           ///< NUL-terminated
  std::array<std::atomic<std::uint32_t>, kSlots> joined;  ///< 1 + epoch; 0: none
  struct Place {
    std::uint32_t port;
    std::int32_t restart_count;
    std::int32_t machine_rank;
    std::int32_t num_machines;
    std::array<char, 1028> host;
    std::array<char, 64> secret;
  };
  Place place;  ///< written while no epoch goes on

  void changed() noexcept {
    changes.fetch_add(1);
    ::syscall(SYS_futex, &changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
};

MembershipPage::MembershipPage(UniqueFd fd) : fd_(std::move(fd)) {
  static_assert(sizeof(Layout) <= kPageBytes);
  void* const memory =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    throw Error(Errc::out_of_memory, fmt::format("cannot map the page of the job's membership: {}",
                                                 std::generic_category().message(errno)));
  }
  page_ = static_cast<Layout*>(memory);
}

MembershipPage MembershipPage::create(Changes changes) {
  UniqueFd fd(::memfd_create("acc-membership", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), kPageBytes) != 0) {
    throw Error(Errc::out_of_memory, fmt::format("cannot make the page of the job's membership: {}",
                                                 std::generic_category().message(errno)));
  }
  MembershipPage page(std::move(fd));
  page.page_->changes_of_launcher = changes;
  return page;
}

MembershipPage::MembershipPage(const std::string& given)
    : MembershipPage([&] {
        const std::string path = given.substr(given.starts_with(kRequired) ? kRequired.size() : 0);
        UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
        struct stat state {};
        if (!fd || ::fstat(fd.get(), &state) != 0 ||
            state.st_size != static_cast<off_t>(kPageBytes)) {
          throw Error(Errc::config,
                      fmt::format("{} is not the page of a job's membership that the launcher of "
                                  "this worker has made",
                                  path));
        }
        return fd;
      }()) {
  fd_.reset();  // the mapping is all that is needed
}

MembershipPage::MembershipPage(MembershipPage&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

MembershipPage::~MembershipPage() {
  if (page_ != nullptr) {
    ::munmap(page_, kPageBytes);
  }
}

std::uint32_t MembershipPage::epoch() const noexcept {
  return page_->epoch.load();
}

MembershipPage::Changes MembershipPage::changes() const noexcept {
  return page_->changes_of_launcher;
}

bool MembershipPage::is_first(std::uint32_t epoch) const noexcept {
  return page_->first == epoch;
}

bool MembershipPage::has_ended(std::uint32_t epoch) const noexcept {
  return page_->epoch.load() != epoch || page_->ended.load() == epoch + 1;
}

bool MembershipPage::has_lost(std::uint32_t epoch) const noexcept {
  return page_->lost.load() > epoch;
}

void MembershipPage::end_epoch() noexcept {
  page_->lost.store(page_->epoch.load() + 1);
  end_epoch_between_steps();
}

void MembershipPage::end_epoch_between_steps() noexcept {
  page_->ended.store(page_->epoch.load() + 1);
  page_->changed();
}

void MembershipPage::begin_epoch(std::uint32_t epoch, const Meeting& meeting) {
  Layout::Place place{.port = meeting.port,
                      .restart_count = meeting.restart_count,
                      .machine_rank = meeting.machine_rank,
                      .num_machines = meeting.num_machines,
                      .host = {},
                      .secret = {}};
  if (meeting.host.size() >= place.host.size() || meeting.secret.size() >= place.secret.size()) {
    throw Error(Errc::config, fmt::format("the address of the job's store, {}, is too long",
                                          meeting.host.substr(0, 80)));
  }
  std::ranges::copy(meeting.host, place.host.begin());
  std::ranges::copy(meeting.secret, place.secret.begin());
  page_->place = place;
  if (page_->ended.load() == 0) {
    page_->first = epoch;
  }
  page_->epoch.store(epoch);
  page_->changed();
}

std::optional<MembershipPage::Meeting> MembershipPage::meeting(std::uint32_t epoch) const {
  const Layout::Place place = page_->place;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (has_ended(epoch)) {
    return std::nullopt;  // the next place may have been written meanwhile
  }
  return Meeting{.host = text_of(place.host),
                 .port = static_cast<std::uint16_t>(place.port),
                 .secret = text_of(place.secret),
                 .restart_count = place.restart_count,
                 .machine_rank = place.machine_rank,
                 .num_machines = place.num_machines};
}

void MembershipPage::begin_no_more() noexcept {
  page_->last.store(1);
  page_->changed();
}

bool MembershipPage::begins_no_more() const noexcept {
  return page_->last.load() != 0;
}

void MembershipPage::end_round(std::string_view reason) noexcept {
  if (page_->over.load() == 0) {
    std::memcpy(page_->reason.data(), reason.data(),
                std::min(reason.size(), page_->reason.size() - 1));
    page_->over.store(1);
    page_->changed();
  }
}

std::optional<std::string> MembershipPage::round_end() const {
  if (page_->over.load() == 0) {
    return std::nullopt;
  }
  // Any worker may have written the page.
  return printable(text_of(page_->reason));
}

void MembershipPage::check(std::uint32_t epoch) const {
  if (auto reason = round_end()) {
    throw Error(Errc::peer_lost, *reason);
  }
  if (has_lost(epoch)) {
    throw Error(Errc::peer_lost, "the job has lost a rank, which another process takes over");
  }
}

bool MembershipPage::await_change(std::uint32_t seen, std::chrono::milliseconds timeout) const {
  using Clock = std::chrono::steady_clock;
  // A limit for each sleep, so that no timeout is too long for the clock.
  constexpr std::chrono::milliseconds kSleep{1000};
  const auto begin = Clock::now();
  while (true) {
    const std::uint32_t changes = page_->changes.load();
    const std::uint32_t epoch = page_->epoch.load();
    if ((epoch != seen && !has_ended(epoch)) || page_->over.load() != 0 || begins_no_more()) {
      return true;
    }
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    if (waited >= timeout) {
      return false;
    }
    const auto sleep = std::min(kSleep, timeout - waited);
    const timespec time{.tv_sec = static_cast<time_t>(sleep.count() / 1000),
                        .tv_nsec = static_cast<long>(sleep.count() % 1000) * 1'000'000};
    ::syscall(SYS_futex, &page_->changes, FUTEX_WAIT, changes, &time, nullptr, 0);
  }
}

void MembershipPage::await_next(std::uint32_t seen, std::chrono::milliseconds timeout) const {
  if (!await_change(seen, timeout)) {
    throw Error(Errc::timeout, fmt::format("the launcher has replaced no rank within {} s",
                                           timeout.count() / 1000));
  }
  if (const auto reason = round_end()) {
    throw Error(Errc::collective, *reason);
  }
  if (begins_no_more()) {
    throw Error(Errc::collective, "the launcher of this machine ends its workers");
  }
}

void MembershipPage::await_news() const noexcept {
  constexpr timespec kSecond{.tv_sec = 1, .tv_nsec = 0};
  const std::uint32_t changes = page_->changes.load();
  if (page_->over.load() == 0) {
    ::syscall(SYS_futex, &page_->changes, FUTEX_WAIT, changes, &kSecond, nullptr, 0);
  }
}

void MembershipPage::wake() noexcept {
  page_->changed();
}

void MembershipPage::joined(int slot, std::uint32_t epoch) noexcept {
  if (slot >= 0 && slot < kSlots) {
    page_->joined[static_cast<std::size_t>(slot)].store(epoch + 1);
  }
}

bool MembershipPage::has_joined(int slot, std::uint32_t epoch) const noexcept {
  return slot < 0 || slot >= kSlots ||
         page_->joined[static_cast<std::size_t>(slot)].load() == epoch + 1;
}

}  // namespace acc
