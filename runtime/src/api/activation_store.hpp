#pragma once

#include "device/device.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>

namespace acc::detail {

/// Where a runtime keeps activations between a forward and its backward: memory of the device, or
/// host memory beside a GPU, to and from which they travel on streams of their own. Memory is used
/// again, in the order of the streams, without waiting and without a zero-fill.
class ActivationStore : public std::enable_shared_from_this<ActivationStore> {
 public:
  /// offload: to host memory; without effect on the CPU, whose memory it is.
  ActivationStore(device::DevicePtr device, bool offload);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// One activation: [nbytes].
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
    device::MemoryPtr near_;    ///< of the device; null while it is on the host
    device::MemoryPtr far_;     ///< of the host; null where nothing is offloaded
    device::EventPtr left_;     ///< when it had reached the host
    device::EventPtr arrived_;  ///< when it is back; null once the compute stream waits for that
  };

 private:
  using Free = std::multimap<std::size_t, device::MemoryPtr>;
  device::MemoryPtr take_near(std::size_t nbytes);
  device::MemoryPtr take_far(std::size_t nbytes);
  /// Copies `data` out of the program's way and from there to `far`.
  device::EventPtr send(const device::MemoryPtr& far, const void* data, std::size_t nbytes);
  device::EventPtr fetch(const device::MemoryPtr& near, const device::MemoryPtr& far,
                         const device::Event& left, std::size_t nbytes);

  /// A copy that the program need not wait for: it may overwrite what it gave.
  struct Leaving {
    device::MemoryPtr copy;
    device::EventPtr left;
  };

  device::DevicePtr device_;
  device::StreamPtr out_;  ///< null where nothing is offloaded
  device::StreamPtr back_;
  std::deque<Leaving> leaving_;
  Free free_near_;
  Free free_far_;
};

}  // namespace acc::detail
