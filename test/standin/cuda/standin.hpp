// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

/// Interface for stand-ins of libraries that work on CUDA streams (NCCL, cuBLASLt).
namespace standin {

/// Queues `work` on `stream` (null: the device's default stream). It runs later, on a thread of the
/// stand-in, for example when a thread waits for it, and must not wait for other work itself.
/// If the stream is captured, the work may run several times, or never. Returns CUDA's error if
/// there is no such stream or its capture has failed.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/// The same for work that depends on others, such as a collective on its peers. If `work` returns
/// false, it is not complete and is called again after other streams had their turn. It may have
/// done a part by then.
cudaError_t enqueue_poll(cudaStream_t stream, std::function<bool()> work);

/// The device that `stream` belongs to.
cudaError_t stream_device(cudaStream_t stream, int* device);

/// Ends the process with a message if [address, address + nbytes) overlaps freed device memory or
/// reaches past an allocation. `what` names the reader or writer.
void check_range(const void* address, std::size_t nbytes, const char* what);

/// Makes all later calls for `device` fail with `error`, as after a kernel's fault.
void fail_device(int device, cudaError_t error);

}  // namespace standin

/// Number of calls so far that made a thread wait for a device: cudaStreamSynchronize,
/// cudaEventSynchronize and cudaDeviceSynchronize. Tests look it up by dlsym, because it does not
/// exist on a GPU.
extern "C" long acc_standin_host_waits();
/// Number of calls so far that gave work to a device: launches of kernels and graphs, copies, and
/// calls of libraries.
extern "C" long acc_standin_issued();
