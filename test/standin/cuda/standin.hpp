#pragma once

#include <cuda_runtime_api.h>

#include <functional>

/// For stand-ins of libraries that work on CUDA streams (NCCL, cuBLASLt).
namespace standin {

/// Queues `work` on `stream` (null: the device's default stream). It runs later, on a thread of the
/// stand-in, when somebody waits for it, and must not wait for other work itself.
/// cudaErrorInvalidResourceHandle for a stream that is not there.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

/// The same for work that needs something from elsewhere, as a collective needs its peers: false
/// says "not yet", and it is called again after other streams had their turn. A call that returns
/// false may have done a part.
cudaError_t enqueue_poll(cudaStream_t stream, std::function<bool()> work);

/// The device that `stream` belongs to.
cudaError_t stream_device(cudaStream_t stream, int* device);

/// Ends the process with a sentence when [address, address + nbytes) touches device memory that was
/// freed, or reaches past an allocation. `what` names the reader or writer.
void check_range(const void* address, std::size_t nbytes, const char* what);

/// Makes all later calls for `device` fail with `error`, as after a kernel's fault.
void fail_device(int device, cudaError_t error);

}  // namespace standin
