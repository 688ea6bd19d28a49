#pragma once

#include "device/device.hpp"

#include <memory>

namespace acc::collectives {
class ProcessGroup;
struct GroupSpec;
}  // namespace acc::collectives

namespace acc::device {

/// What libacc_cuda.so gives. It is loaded when a GPU is asked for, so that everything else runs on
/// machines that have neither driver nor CUDA.
class Backend {
 public:
  virtual ~Backend() = default;
  /// GPUs that this process sees. Throws Error(device): no driver, or too old, in words.
  virtual int device_count() = 0;
  /// Error(device) names an index that is not there and how many are.
  virtual DevicePtr open(int index) = 0;

  /// NCCL's version as 10000 * major + 100 * minor + patch, or 0 where the library is not found;
  /// `nccl_problem` then says what was tried.
  virtual int nccl_version() = 0;
  virtual std::string nccl_problem() = 0;
  /// An NCCL communicator over the ranks of `spec`, for memory of `device`. `host`: the same ranks
  /// on host memory, for figures, barriers, aborts and to notice a dead peer. `parent`: a group
  /// made here that all ranks of it are splitting at this moment, each into one group, or null.
  /// `color`: equal on the ranks of one part. Collective over `parent`, else over `spec.ranks`.
  virtual std::shared_ptr<collectives::ProcessGroup> make_nccl_group(
      const collectives::GroupSpec& spec, std::shared_ptr<collectives::ProcessGroup> host,
      DevicePtr device, collectives::ProcessGroup* parent, int color) = 0;
};

/// Changes whenever this header, device.hpp or process_group.hpp does in a way that matters.
inline constexpr int kBackendVersion = 3;
inline constexpr const char* kBackendEntry = "acc_cuda_backend";
/// The entry's type: returns null for another `version`.
using BackendEntry = Backend* (*)(int version);

}  // namespace acc::device
