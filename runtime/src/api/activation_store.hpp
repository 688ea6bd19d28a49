// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>

namespace acc::detail {

/// Stores activations between a forward and its backward: in memory of the device or, offloaded, in
/// page-locked host memory, with one stream for each direction. Memory is reused in the order of
/// the streams, without waiting and without a zero-fill.
class ActivationStore : public std::enable_shared_from_this<ActivationStore> {
 public:
  /// offload: store in host memory; no effect on the CPU, which has only host memory.
  ActivationStore(device::DevicePtr device, bool offload);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// One stored activation, [nbytes]. The copies run on the store's streams:
  ///
  ///     constructor: data -> staging copy (compute stream) -> host (out stream)
  ///     prefetch:    host -> device memory (back stream)
  ///     restore:     the compute stream waits for prefetch's copy
  class Kept {
   public:
    Kept(std::shared_ptr<ActivationStore> store, const void* data, std::size_t nbytes);
    ~Kept();
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;

    void prefetch();
    const void* restore();

   private:
    void await_arrival();

    std::shared_ptr<ActivationStore> store_;
    std::size_t nbytes_;
    device::MemoryPtr near_;    ///< device memory; null while the values are on the host
    device::MemoryPtr far_;     ///< host memory; null if nothing is offloaded
    device::EventPtr left_;     ///< end of the copy to the host
    device::EventPtr arrived_;  ///< end of the copy back; null once the compute stream waits for it
  };

 private:
  using Free = std::multimap<std::size_t, device::MemoryPtr>;
  device::MemoryPtr take_near(std::size_t nbytes);
  device::MemoryPtr take_far(std::size_t nbytes);
  /// Copies `data` to a staging copy on the device, which the program cannot overwrite, and from
  /// there to `far`. Returns the end of the copy to the host.
  device::EventPtr send(const device::MemoryPtr& far, const void* data, std::size_t nbytes);
  device::EventPtr fetch(const device::MemoryPtr& near, const device::MemoryPtr& far,
                         const device::Event& left, std::size_t nbytes);

  /// A staging copy that is being copied to the host.
  struct Leaving {
    device::MemoryPtr copy;
    device::EventPtr left;
  };

  device::DevicePtr device_;
  device::StreamPtr out_;  ///< null if nothing is offloaded
  device::StreamPtr back_;
  std::deque<Leaving> leaving_;
  Free free_near_;
  Free free_far_;
};

}  // namespace acc::detail
