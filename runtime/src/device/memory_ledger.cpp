#include "device/memory_ledger.hpp"

#include <algorithm>

namespace acc::device {

MemoryMetrics MemoryLedger::figures() const {
  const std::lock_guard lock(mutex_);
  MemoryMetrics figures{.allocated = allocated_,
                        .peak_allocated = peak_,
                        .reserved = allocated_,
                        .host_allocated = host_,
                        .holders = {}};
  // Purposes whose memory has been freed completely stay in the map with 0 bytes.
  for (const auto& [what, nbytes] : holders_) {
    if (nbytes > 0) {
      figures.holders.push_back({what, nbytes});
    }
  }
  std::stable_sort(figures.holders.begin(), figures.holders.end(),
                   [](const auto& a, const auto& b) { return a.nbytes > b.nbytes; });
  return figures;
}

}  // namespace acc::device
