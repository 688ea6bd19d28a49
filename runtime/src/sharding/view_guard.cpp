// SPDX-License-Identifier: Apache-2.0
// A SIGSEGV handler that explains accesses to guarded memory. The handler may interrupt any thread
// at any instruction, so it only uses async-signal-safe calls: it walks a list of atomics that are
// never freed, formats the line in a fixed buffer, and writes it with write(2). The log would
// allocate and lock. The handler then restores the previous action and returns; the same
// instruction faults again and the process ends as it would have ended without the guard (core
// dump, other handlers).
#include "sharding/view_guard.hpp"

#include "acc/base/error.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>

namespace acc::sharding {
namespace {

/// Page size on which device and group memory is aligned; mprotect(2) protects whole pages.
constexpr std::size_t kPage = 4096;

/// A line of text for the signal handler, which must not allocate memory.
class Line {
 public:
  Line& operator<<(std::string_view text) noexcept {
    const std::size_t count = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& operator<<(int number) noexcept {
    std::array<char, 12> digits{};
    std::size_t at = digits.size();
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << std::string_view(digits.data() + at, digits.size() - at);
  }
  void print() noexcept {
    *this << "\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 1024> text_{};
  std::size_t size_ = 0;
};

}  // namespace

/// Memory that one guard protects; an entry of the list that the signal handler walks. Entries are
/// never freed, only reused by another guard.
struct GuardedRange {
  std::atomic<std::uintptr_t> begin{0};  ///< 0: not in use
  std::atomic<std::size_t> nbytes{0};
  std::atomic<int> protection{PROT_READ | PROT_WRITE};
  std::atomic<const ViewGuard::Contents*> contents{nullptr};
  std::atomic<std::size_t> width{1};
  std::atomic<int> rank{0};
  GuardedRange* next = nullptr;

  void protect(int wanted) {
    if (::mprotect(reinterpret_cast<void*>(begin.load()), nbytes, wanted) != 0) {
      throw Error(Errc::device, std::string("ACC_CHECK: cannot protect gathered weights: ") +
                                    std::strerror(errno));
    }
    protection = wanted;
  }
};

namespace {

std::atomic<GuardedRange*> first_range{nullptr};
struct sigaction previous_action;

/// Returns an unused entry, or a new one at the front of the list, for memory that starts at
/// `begin`.
GuardedRange& claim(std::uintptr_t begin) {
  for (GuardedRange* each = first_range; each != nullptr; each = each->next) {
    std::uintptr_t none = 0;
    if (each->begin.compare_exchange_strong(none, begin)) {
      return *each;
    }
  }
  auto* const made = new GuardedRange;
  made->begin = begin;
  made->next = first_range;
  while (!first_range.compare_exchange_weak(made->next, made)) {
  }
  return *made;
}

const GuardedRange* range_of(std::uintptr_t address) {
  const GuardedRange* each = first_range;
  while (each != nullptr && (address < each->begin || address >= each->begin + each->nbytes)) {
    each = each->next;
  }
  return each;
}

void print_mistake(const GuardedRange& range, std::uintptr_t address) {
  const ViewGuard::Contents& contents = *range.contents;
  const std::size_t element = (address - range.begin) / range.width;
  const auto part =
      std::find_if(contents.parts.begin(), contents.parts.end(),
                   [element](const ViewGuard::Contents::Part& each) { return element < each.end; });
  Line line;
  line << "libacc_runtime: rank " << range.rank << ": ";
  if (part != contents.parts.end()) {
    line << "parameter '" << part->name << "' of ";
  }
  line << "unit '" << contents.unit << "' was ";
  line << (range.protection == PROT_READ
               ? "written through its read-only view"
               : "used through a pointer that was kept after its scope had ended");
  line.print();
}

/// The signal handler. Async-signal-safe. Afterwards the signal has its previous action.
void explain(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool is_access = info->si_code > 0;  // otherwise a process sent the signal (kill(2))
  if (const GuardedRange* const range = is_access ? range_of(address) : nullptr) {
    print_mistake(*range, address);
  }
  ::sigaction(signal, &previous_action, nullptr);
  if (!is_access) {  // no instruction faults again, so the signal is raised again
    ::raise(signal);
  }
}

void install() {
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(kPage)) {
    throw Error(Errc::not_supported,
                "ACC_CHECK needs memory pages of 4096 bytes, this machine has " +
                    std::to_string(::sysconf(_SC_PAGESIZE)));
  }
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace

ViewGuard::ViewGuard(bool on) : on_(on) {
  if (on_) {
    static std::once_flag once;
    std::call_once(once, install);
  }
}

void ViewGuard::show(const void* memory, std::size_t nbytes, std::size_t width,
                     const Contents& contents, int rank) {
  if (!on_) {
    return;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  GuardedRange*& range = shown_[begin];
  if (range == nullptr) {
    range = &claim(begin);
  }
  range->contents = &contents;
  range->width = width;
  range->rank = rank;
  range->nbytes = std::max(range->nbytes.load(), (nbytes + kPage - 1) / kPage * kPage);
  range->protect(PROT_READ);
}

void ViewGuard::hide(const void* memory) {
  if (const auto found = shown_.find(reinterpret_cast<std::uintptr_t>(memory));
      found != shown_.end()) {
    found->second->protect(PROT_NONE);
  }
}

void ViewGuard::open(const void* memory) {
  if (const auto found = shown_.find(reinterpret_cast<std::uintptr_t>(memory));
      found != shown_.end()) {
    found->second->protect(PROT_READ | PROT_WRITE);
  }
}

void ViewGuard::release() noexcept {
  for (const auto& [begin, range] : shown_) {
    ::mprotect(reinterpret_cast<void*>(begin), range->nbytes, PROT_READ | PROT_WRITE);
    range->nbytes = 0;
    range->begin = 0;
  }
  shown_.clear();
}

}  // namespace acc::sharding
