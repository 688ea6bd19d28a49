// SPDX-License-Identifier: Apache-2.0
#include "api/activation_store.hpp"

#include <exception>
#include <utility>

namespace acc::detail {
namespace {

/// Staging copies in GPU memory at once; the compute stream waits before there are more. Together
/// with a restored and a prefetched activation this bounds what offloading leaves on the GPU.
constexpr std::size_t kLeaving = 2;

/// Takes the smallest free piece of at least `nbytes` and at most twice that; null if there is
/// none.
device::MemoryPtr take_free(std::multimap<std::size_t, device::MemoryPtr>& pieces,
                            std::size_t nbytes) {
  const auto found = pieces.lower_bound(nbytes);
  if (found == pieces.end() || found->first > 2 * nbytes) {
    return nullptr;
  }
  device::MemoryPtr piece = std::move(found->second);
  pieces.erase(found);
  return piece;
}

void give_back(std::multimap<std::size_t, device::MemoryPtr>& pieces, device::MemoryPtr piece) {
  if (piece) {
    const std::size_t nbytes = piece->nbytes();
    pieces.emplace(nbytes, std::move(piece));
  }
}

}  // namespace

ActivationStore::ActivationStore(device::DevicePtr device, bool offload)
    : device_(std::move(device)) {
  if (offload && device_->kind() == settings::Device::cuda) {
    out_ = device_->make_stream("activations to host");
    back_ = device_->make_stream("activations to GPU");
  }
}

ActivationStore::~ActivationStore() {
  try {
    if (out_) {
      device_->synchronize();
    }
  } catch (const std::exception&) {  // the device has failed: nothing runs on it any more
  }
}

device::MemoryPtr ActivationStore::take_near(std::size_t nbytes) {
  device::MemoryPtr piece = take_free(free_near_, nbytes);
  return piece ? piece : device_->allocate(nbytes, "kept activations");
}

device::MemoryPtr ActivationStore::take_far(std::size_t nbytes) {
  device::MemoryPtr piece = take_free(free_far_, nbytes);
  return piece ? piece : device_->allocate_host(nbytes, "offloaded activations");
}

// The program may overwrite its data as soon as this returns (in stream order), while the copy to
// the host is still under way. So the data is first copied on the device, which is fast, and sent
// from there.
device::EventPtr ActivationStore::send(const device::MemoryPtr& far, const void* data,
                                       std::size_t nbytes) {
  if (leaving_.size() == kLeaving) {
    device_->wait(device_->compute(), *leaving_.front().left);
    give_back(free_near_, std::move(leaving_.front().copy));
    leaving_.pop_front();
  }
  device::MemoryPtr copy = take_near(nbytes);
  device_->copy(copy->data(), data, nbytes, device_->compute());
  device_->wait(*out_, *device_->record(device_->compute()));
  device_->copy(far->data(), copy->data(), nbytes, *out_);
  device::EventPtr left = device_->record(*out_);
  leaving_.push_back({std::move(copy), left});
  return left;
}

device::EventPtr ActivationStore::fetch(const device::MemoryPtr& near, const device::MemoryPtr& far,
                                        const device::Event& left, std::size_t nbytes) {
  device_->wait(*back_, *device_->record(device_->compute()));  // it may still use this memory
  device_->wait(*back_, left);
  device_->copy(near->data(), far->data(), nbytes, *back_);
  return device_->record(*back_);
}

ActivationStore::Kept::Kept(std::shared_ptr<ActivationStore> store, const void* data,
                            std::size_t nbytes)
    : store_(std::move(store)), nbytes_(nbytes) {
  if (store_->out_) {
    far_ = store_->take_far(nbytes);
    left_ = store_->send(far_, data, nbytes);
  } else {
    near_ = store_->take_near(nbytes);
    store_->device_->copy(near_->data(), data, nbytes, store_->device_->compute());
  }
}

ActivationStore::Kept::~Kept() {
  try {
    await_arrival();
  } catch (const std::exception&) {  // the device has failed: nothing runs on it any more
  }
  give_back(store_->free_near_, std::move(near_));
  give_back(store_->free_far_, std::move(far_));
}

void ActivationStore::Kept::prefetch() {
  if (!near_) {
    near_ = store_->take_near(nbytes_);
    arrived_ = store_->fetch(near_, far_, *left_, nbytes_);
  }
}

const void* ActivationStore::Kept::restore() {
  prefetch();
  await_arrival();
  return near_->data();
}

/// Makes the compute stream wait for the copy back. Later work follows the copy, including the next
/// use of this memory, so the destructor calls it too.
void ActivationStore::Kept::await_arrival() {
  if (arrived_) {
    store_->device_->wait(store_->device_->compute(), *arrived_);
    arrived_.reset();
  }
}

}  // namespace acc::detail
