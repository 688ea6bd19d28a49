// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <optional>
#include <string>

namespace acc {

// Variables that one part of acclaunch sets and another reads, or that several read. A variable of
// one part is named there; no name is a literal in two files (the test `structure`).

inline constexpr const char* kCudaVisibleVariable = "CUDA_VISIBLE_DEVICES";
/// `acc`: loaders that Accelerate prepares use the order of acclaunch.data.
inline constexpr const char* kDataOrderVariable = "ACC_DATA_ORDER";
// Record of the samples that a training uses (docs/data.md): its folder, and the number of the
// job's round.
inline constexpr const char* kDataRecordVariable = "ACC_DATA_RECORD";
inline constexpr const char* kDataRoundVariable = "ACC_DATA_ROUND";
inline constexpr const char* kDeviceVariable = "ACC_DEVICE";
/// Number of ranks of each machine, "4,4,2", if machines differ.
inline constexpr const char* kLocalWorldSizesVariable = "ACC_LOCAL_WORLD_SIZES";
/// What the launcher was told to shard by: none, fsdp or deepspeed.
inline constexpr const char* kModeVariable = "ACC_MODE";
/// Address of machine 0, if MASTER_ADDR is a tunnel to it.
inline constexpr const char* kMainAddressVariable = "ACC_MAIN_ADDRESS";
inline constexpr const char* kNcclLibraryVariable = "ACC_NCCL_LIBRARY";
inline constexpr const char* kNoColourVariable = "NO_COLOR";
// Recordings of trainings (docs/formats/recording.md).
inline constexpr const char* kRecordVariable = "ACC_RECORD";
inline constexpr const char* kRecordStepsVariable = "ACC_RECORD_STEPS";
inline constexpr const char* kRecordRandomVariable = "ACC_RECORD_RANDOM";
inline constexpr const char* kShareGpusVariable = "ACC_SHARE_GPUS";
inline constexpr const char* kTerminalVariable = "TERM";
inline constexpr const char* kTraceVariable = "ACC_TRACE";
inline constexpr const char* kUseCpuVariable = "ACCELERATE_USE_CPU";
inline constexpr const char* kUseDeepSpeedVariable = "ACCELERATE_USE_DEEPSPEED";
inline constexpr const char* kUseFsdpVariable = "ACCELERATE_USE_FSDP";

// Security of a rendezvous.
inline constexpr const char* kTokenVariable = "ACC_RENDEZVOUS_TOKEN";
inline constexpr const char* kTokenFileVariable = "ACC_RENDEZVOUS_TOKEN_FILE";
inline constexpr const char* kCaFileVariable = "ACC_RENDEZVOUS_CA_FILE";
inline constexpr const char* kClientCertificateVariable = "ACC_RENDEZVOUS_CLIENT_CERT";
inline constexpr const char* kClientKeyVariable = "ACC_RENDEZVOUS_CLIENT_KEY";

/// Returns a variable of this process; nullopt: it is unset. For variables that are no settings:
/// those are decoded from `settings::current_environment()`.
ACC_API std::optional<std::string> process_variable(const char* name);

/// False if $NO_COLOR is set.
ACC_API bool allows_colours();

/// True if $TERM names a terminal that understands escape sequences, which is not `dumb`.
ACC_API bool has_cursor();

/// True if NCCL may run several ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE=1).
ACC_API bool shares_gpus_by_nccl();

}  // namespace acc
