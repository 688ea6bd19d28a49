// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <memory>

namespace acc::collectives {
class ProcessGroup;
struct GroupSpec;
}  // namespace acc::collectives

namespace acc::device {

/// Interface of libacc_cuda.so. The library is loaded when a GPU is requested, so everything else
/// runs on machines that have neither a driver nor CUDA.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Number of GPUs that this process sees. Throws Error(device) if there is none, the driver is
  /// missing, or it is too old.
  virtual int device_count() = 0;
  /// Opens GPU number `index`. Throws Error(device) if there is no such GPU.
  virtual DevicePtr open(int index) = 0;

  /// NCCL's version as 10000 * major + 100 * minor + patch, or 0 if the library is not found. Then
  /// `nccl_problem` says where it was searched.
  virtual int nccl_version() = 0;
  virtual std::string nccl_problem() = 0;
  /// Makes an NCCL group over the ranks of `spec`, for memory of `device`. `host`: a group of the
  /// same ranks on host memory, used for scalars, barriers, aborts and to detect dead peers.
  /// `parent`: null, or a group made here whose communicator is split: all of its ranks call at the
  /// same time, each for the part that it belongs to. `color`: equal on the ranks of one part,
  /// different between parts. Collective over `parent` if there is one, else over `spec.ranks`.
  /// Throws Error(not_supported) if NCCL is too old for `options`.
  virtual std::shared_ptr<collectives::ProcessGroup> make_nccl_group(
      const collectives::GroupSpec& spec, std::shared_ptr<collectives::ProcessGroup> host,
      DevicePtr device, collectives::ProcessGroup* parent, int color,
      const settings::NcclOptions& options) = 0;
};

/// Version of the binary interface. Increase it at every incompatible change of this header,
/// device.hpp or process_group.hpp.
inline constexpr int kBackendVersion = 6;
inline constexpr const char* kBackendEntry = "acc_cuda_backend";
/// Type of the entry function. It returns null if it does not implement `version`.
using BackendEntry = Backend* (*)(int version);

}  // namespace acc::device
