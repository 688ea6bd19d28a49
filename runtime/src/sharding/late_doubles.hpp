// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace acc::sharding {

/// Doubles that the device computes and copies to host memory, read when they are needed.
class LateDoubles {
 public:
  /// sums: the collectives that they depend on.
  LateDoubles(device::MemoryPtr host, device::EventPtr copied, std::size_t numel,
              std::vector<collectives::WorkPtr> sums)
      : host_(std::move(host)), copied_(std::move(copied)), numel_(numel), sums_(std::move(sums)) {}
  /// Blocks until they are there. Throws Error(device), and the error of a collective that failed:
  /// a group that is aborted ends the collective on the GPU, with an undefined result.
  [[nodiscard]] std::span<const double> wait() const {
    copied_->synchronize();
    for (const collectives::WorkPtr& sum : sums_) {
      sum->wait();
    }
    return {host_->as<const double>(), numel_};
  }

 private:
  device::MemoryPtr host_;
  device::EventPtr copied_;
  std::size_t numel_;
  std::vector<collectives::WorkPtr> sums_;
};

/// Copies doubles of a device to host memory without waiting. Uses host memory again whose doubles
/// nobody holds any more.
class LateReader {
 public:
  /// device: outlives this object.
  explicit LateReader(device::Device& device) : device_(device) {}
  /// Queues the copy behind the work that was issued to the compute stream. numel: at most kMost;
  /// sums: collectives that it depends on.
  [[nodiscard]] LateDoubles read(const double* from, std::size_t numel,
                                 std::vector<collectives::WorkPtr> sums) {
    device::MemoryPtr host = unused();
    device_.copy(host->data(), from, numel * sizeof(double), device_.compute());
    return {std::move(host), device_.record(device_.compute()), numel, std::move(sums)};
  }
  static constexpr std::size_t kMost = 4;

 private:
  device::MemoryPtr unused() {
    for (const device::MemoryPtr& each : all_) {
      if (each.use_count() == 1) {
        return each;
      }
    }
    return all_.emplace_back(device_.allocate_host(kMost * sizeof(double), "figures"));
  }

  device::Device& device_;
  std::vector<device::MemoryPtr> all_;
};

}  // namespace acc::sharding
