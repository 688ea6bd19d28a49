// SPDX-License-Identifier: Apache-2.0
#include "cuda/nccl/nccl_group.hpp"

#include "acc/base/error.hpp"
#include "acc/base/seconds_text.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/device_route.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/nccl/make_nccl_group.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <utility>
#include <vector>

namespace acc::cuda {

using collectives::BufferPtr;
using collectives::DeviceBuffer;
using collectives::ProcessGroup;
using collectives::ReduceOptions;
using collectives::Work;
using collectives::WorkPtr;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kZeroSmVersion = 22800;  // first with NCCL_CTA_POLICY_ZERO

}  // namespace

class NcclGroup::Issued final : public Work {
 public:
  Issued(NcclGroup* group, device::EventPtr done) : group_(group), done_(std::move(done)) {}
  void wait() override {
    group_->failure_.throw_if();
    group_->device_->wait(group_->device_->compute(), *done_);
  }
  /// A collective is complete on this rank only after its input has been read, so there is no more
  /// to wait for.
  void wait_released() override { wait(); }
  device::EventPtr done() const override { return done_; }

 private:
  NcclGroup* group_;
  device::EventPtr done_;
};

NcclGroup::NcclGroup(collectives::GroupSpec spec, std::shared_ptr<ProcessGroup> host,
                     device::DevicePtr device, std::shared_ptr<Communicator> communicator)
    : spec_(std::move(spec)),
      host_(std::move(host)),
      device_(std::move(device)),
      communicator_(std::move(communicator)),
      arena_(communicator_, device_),
      stream_(device_->make_stream("nccl " + spec_.name)),
      store_(spec_.store->clone()) {
  NcclWatch::instance().add(this);
}

NcclGroup::~NcclGroup() {
  // Still watched: if a peer is gone, the watch aborts the collectives that wait for it, so this
  // wait ends.
  try {
    device_->record(*stream_)->synchronize();
  } catch (const Error&) {  // the device failed, which was reported where the work was issued
  }
  NcclWatch::instance().remove(this);
}

std::string NcclGroup::describe() const {
  return fmt::format("nccl[{}]", fmt::join(spec_.ranks, ","));
}

// --- memory ---

BufferPtr NcclGroup::allocate(std::size_t nbytes, const char* what) {
  try {
    if (auto buffer = arena_.allocate(nbytes, what)) {
      return buffer;
    }
  } catch (const Error& error) {
    end(error.what());  // registration is collective: the other ranks wait for this one
    throw;
  }
  return std::make_shared<DeviceBuffer>(device_->allocate(nbytes, what));
}

void* NcclGroup::scratch(std::size_t nbytes) {
  if (!scratch_ || scratch_->nbytes() < nbytes) {
    // The old memory's next owner is ordered behind the compute stream only (see device.hpp,
    // Memory).
    device_->wait(device_->compute(), *device_->record(*stream_));
    scratch_ = allocate(nbytes, "reduction buffers of collectives");
  }
  return scratch_->data();
}

// --- collectives ---

WorkPtr NcclGroup::issue(std::string what, const Communicator::Call& call,
                         const std::function<void()>& after) {
  failure_.throw_if();
  // compute -> communication stream: the input is complete and the output is no longer used. The
  // way back is in Issued::wait.
  auto ready = device_->record(device_->compute());
  device_->wait(*stream_, *ready);
  device::Timeline* const timeline = device_->timeline();
  const auto begin = timeline == nullptr ? nullptr : device_->record(*stream_);
  try {
    communicator_->call(what, call);
  } catch (const Error& error) {
    end(error.what());
    throw;
  }
  if (after) {
    after();
  }
  auto done = device_->record(*stream_);
  if (timeline != nullptr) {
    timeline->add(timeline->issued(what), stream_->name(), begin, done);
  }
  const std::lock_guard lock(running_mutex_);
  // Collectives of a group complete in issue order, so complete ones are at the front.
  while (!running_.empty() && running_.front().done->done()) {
    running_.pop_front();
  }
  running_.push_back({.number = ++issued_,
                      .what = std::move(what),
                      .ready = std::move(ready),
                      .done = done,
                      .seen = {}});
  return std::make_shared<Issued>(this, std::move(done));
}

WorkPtr NcclGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  return issue(fmt::format("all_gather of {} bytes", shard_nbytes), [&](ncclComm_t comm) {
    return communicator_->api().all_gather(shard, out, shard_nbytes, ncclUint8, comm, stream());
  });
}

namespace {

ncclDataType_t nccl_dtype(DType dtype) {
  switch (dtype) {
    case DType::bfloat16: return ncclBfloat16;
    case DType::float16: return ncclFloat16;
    default: return ncclFloat32;
  }
}

}  // namespace

// NCCL writes to `out` or, if it is not registered or a sum must be added to it, to `scratch`.
//
// Uses ncclSum and scales afterwards. ncclAvg multiplies each input by 1 / size, rounded to the
// dtype, before it adds (an error of 0.2 % for three ranks in bfloat16), and is not supported by
// NVLink multicast and symmetric kernels.
WorkPtr NcclGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                  ReduceOptions options) {
  // NCCL's fast paths need both buffers in registered memory.
  const bool registered = arena_.contains(out) || !arena_.contains(in);
  const bool straight = dtype == DType::float32 && !options.accumulate && registered;
  void* const sums = straight ? out : scratch(shard_numel * nbytes_of(dtype));
  return issue(
      fmt::format("reduce_scatter of {} x {}", shard_numel, to_string(dtype)),
      [&](ncclComm_t comm) {
        return communicator_->api().reduce_scatter(in, sums, shard_numel, nccl_dtype(dtype),
                                                   ncclSum, comm, stream());
      },
      [&] {
        if (!straight || options.scale != 1.0F) {
          device_->add_scaled(sums, dtype, out, shard_numel, options.scale, options.accumulate,
                              *stream_);
        }
      });
}

WorkPtr NcclGroup::all_reduce(float* data, std::size_t numel, DType dtype, float scale) {
  const bool rounds = dtype != DType::float32;
  void* const sums = rounds ? scratch(numel * nbytes_of(dtype)) : static_cast<void*>(data);
  return issue(
      fmt::format("all_reduce of {} x {}", numel, to_string(dtype)),
      [&](ncclComm_t comm) {
        if (rounds) {
          device_->cast(data, DType::float32, sums, dtype, numel, *stream_);
        }
        return communicator_->api().all_reduce(sums, sums, numel, nccl_dtype(dtype), ncclSum, comm,
                                               stream());
      },
      [&] {
        if (rounds || scale != 1.0F) {
          device_->add_scaled(sums, dtype, data, numel, scale, false, *stream_);
        }
      });
}

WorkPtr NcclGroup::all_reduce(std::span<double> data, ReduceOp op) {
  failure_.throw_if();
  return host_->all_reduce(data, op);
}

WorkPtr NcclGroup::sum(double* data, std::size_t numel) {
  return issue(fmt::format("all_reduce of {} x float64", numel), [&](ncclComm_t comm) {
    return communicator_->api().all_reduce(data, data, numel, ncclFloat64, ncclSum, comm, stream());
  });
}

WorkPtr NcclGroup::broadcast(void* data, std::size_t nbytes, int root) {
  return issue(fmt::format("broadcast of {} bytes", nbytes), [&](ncclComm_t comm) {
    return communicator_->api().broadcast(data, data, nbytes, ncclUint8, root, comm, stream());
  });
}

WorkPtr NcclGroup::barrier() {
  failure_.throw_if();
  return host_->barrier();
}

// --- failures ---
//
// NCCL's kernels on the GPU wait for peers without a timeout. The watch therefore looks every 100
// ms at the oldest collective that has not completed, and ends the group
//  - if NCCL reports a background error,
//  - if the host group has failed (a peer ended or aborted) and the collective is still running at
//    the next look, or
//  - if it has not completed within the group's timeout. The time counts from when its input was
//    complete and all collectives before it were done, so slow computation of this rank does not
//    count.
// After a quarter of the timeout each rank publishes the collective that it waits for. The ranks
// that have not done so at the timeout are the late ones.
//
// Ending a group aborts the host group, which ends the waits of the peers' hosts, and the
// communicator, which ends the kernels on this GPU.

std::optional<std::string> NcclGroup::failure() const {
  auto own = failure_.get();
  return own ? own : host_->failure();
}

void NcclGroup::abort(const std::string& reason, Errc code) noexcept {
  end(reason, code);
}

void NcclGroup::end(const std::string& reason, Errc code) noexcept {
  failure_.set(reason, std::nullopt, code);
  if (ended_.exchange(true)) {
    return;
  }
  host_->abort(reason, code);
  // NCCL restores the thread's current device after the abort. On the watch's thread that would be
  // GPU 0, in which it would create a context.
  (void)cudaSetDevice(device_->index());
  communicator_->abort();
}

std::optional<std::string> NcclGroup::trouble() {
  if (const auto reason = failure_.get()) {
    return reason;
  }
  // The host group's reason names a rank; NCCL's own is often only "remote process error".
  if (const auto error = communicator_->async_error()) {
    return host_->failure().value_or(fmt::format("NCCL failed in {} on rank {}: {}", describe(),
                                                 spec_.ranks[static_cast<std::size_t>(spec_.rank)],
                                                 *error));
  }
  const std::lock_guard lock(running_mutex_);
  for (Running& each : running_) {
    try {
      if (!each.done->done()) {
        return trouble_of(each);
      }
    } catch (const Error& error) {
      return fmt::format("rank {}: {}", spec_.ranks[static_cast<std::size_t>(spec_.rank)],
                         error.what());
    }
  }
  return std::nullopt;
}

std::optional<std::string> NcclGroup::trouble_of(Running& oldest) {
  // A peer that left after its part in a collective is not an error: the collective will end by
  // itself. It is given the time until the next look of the watch (100 ms).
  if (const auto reason = host_->failure()) {
    if (std::exchange(oldest.doomed, true)) {
      return reason;
    }
  }
  const auto now = Clock::now();
  if (!oldest.seen && oldest.ready->done()) {
    oldest.seen = now;
  }
  if (oldest.seen && now - *oldest.seen > spec_.timeout / 4) {
    say_that_it_waits(oldest);
  }
  if (oldest.seen && now - *oldest.seen > spec_.timeout) {
    return fmt::format("timeout: {} over {} did not end within {} on rank {}{}", oldest.what,
                       describe(), seconds_text(spec_.timeout),
                       spec_.ranks[static_cast<std::size_t>(spec_.rank)],
                       late_ranks(oldest.number));
  }
  return std::nullopt;
}

void NcclGroup::say_that_it_waits(Running& oldest) {
  if (!std::exchange(oldest.said, true)) {
    try {
      store_->set(fmt::format("{}/nccl/waits/{}", spec_.name, spec_.rank),
                  std::to_string(oldest.number));
    } catch (const Error&) {  // without the store the late ranks cannot be found
    }
  }
}

std::string NcclGroup::late_ranks(std::uint64_t number) const {
  std::vector<int> late;
  for (std::size_t r = 0; r < spec_.ranks.size(); ++r) {
    const std::string key = fmt::format("{}/nccl/waits/{}", spec_.name, r);
    try {
      if (!store_->check(std::span(&key, 1)) ||
          store_->get(key, std::chrono::seconds(5)) != std::to_string(number)) {
        late.push_back(spec_.ranks[r]);
      }
    } catch (const Error&) {
      return "";
    }
  }
  return late.empty() ? "" : fmt::format("; rank {} did not reach it", fmt::join(late, ","));
}

std::shared_ptr<ProcessGroup> make_nccl_group(const collectives::GroupSpec& spec,
                                              std::shared_ptr<ProcessGroup> host,
                                              device::DevicePtr device, ProcessGroup* parent,
                                              int color, const settings::NcclOptions& options) {
  const NcclApi* api = nccl_api();
  if (api == nullptr) {
    throw Error(Errc::device, "no NCCL: " + nccl_problem());
  }
  if (options.zero_sm && api->version < kZeroSmVersion) {
    throw Error(Errc::not_supported,
                fmt::format("ACC_NCCL_ZERO_SM=1 needs NCCL {} or newer, {} is {}",
                            collectives::nccl_version_text(kZeroSmVersion), api->path,
                            collectives::nccl_version_text(api->version)));
  }
  // NCCL uses the thread's current device.
  check(cudaSetDevice(device->index()), "cudaSetDevice", device->index());
  auto communicator = parent == nullptr ? std::make_shared<Communicator>(*api, spec, host, options)
                                        : std::make_shared<Communicator>(
                                              dynamic_cast<NcclGroup&>(*parent).communicator(),
                                              spec, host, color, options);
  return std::make_shared<NcclGroup>(spec, std::move(host), std::move(device),
                                     std::move(communicator));
}

}  // namespace acc::cuda
