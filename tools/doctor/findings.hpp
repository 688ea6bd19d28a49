// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/facts.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::doctor {

/// `error`: a job would fail or hang. `warning`: it would be slow, or fail later. `note`: no
/// problem, but good to know.
enum class Severity { error, warning, note };

std::string_view to_string(Severity severity) noexcept;

struct Finding {
  Severity severity = Severity::note;
  std::string kind;           ///< identifier; docs/doctor.md lists all of them
  std::vector<int> machines;  ///< by machine_rank
  std::string what;
  std::string what_to_do;
};

// Thresholds, with their reasons.

/// A pair is slow if its bandwidth is below this part of the others' median. Equal links of a
/// fabric differ by a few percent. A link that negotiated a lower speed or shares a cable is slower
/// by a factor of 2 or more.
constexpr double kSlowBandwidth = 0.5;
/// A pair is slow if its latency is above this multiple of the others' median and exceeds it by at
/// least kSlowLatencyUs. One more switch adds a few microseconds; a detour over a router or a
/// sleeping CPU adds much more.
constexpr double kSlowLatency = 3.0;
constexpr double kSlowLatencyUs = 200.0;
/// NTP keeps clocks within a few milliseconds. Beyond this limit, log lines of several machines
/// cannot be sorted by time.
constexpr double kSkewWarningMs = 100.0;
/// From about this skew on, certificates, Kerberos tickets and make on shared disks fail.
constexpr double kSkewErrorMs = 60'000.0;
/// The default /dev/shm of a container has 64 MiB. That is too little for NCCL's buffers, for data
/// loaders, and for the ranks' shared weights.
constexpr std::int64_t kLittleShm = std::int64_t{1} << 30;
/// With less memory than about this, a rank cannot start: it needs a CUDA context and collective
/// buffers.
constexpr std::int64_t kLittleMemory = std::int64_t{2} << 30;
/// A rank has a connection to each other rank, and data loaders open hundreds of files. The usual
/// soft limit of 1,024 is the first limit that a large job reaches.
constexpr std::int64_t kFewOpenFiles = 4096;
/// NCCL, BLAS and data loaders start some hundred threads per rank. The limit counts all processes
/// and threads of a user.
constexpr std::int64_t kFewProcesses = 4096;

/// Pairs (a < b) that are much slower than the other pairs, and machines whose pairs are all slow.
/// Pairs of a slow machine are not listed.
struct SlowLinks {
  std::vector<int> machines;
  std::vector<std::pair<int, int>> pairs;
};
SlowLinks slow_links(const Examination& examination);

/// Clock of each machine minus the median of all clocks, in ms; empty if the clock could not be
/// read.
std::vector<std::optional<double>> clock_offsets_ms(const Examination& examination);

/// Host name of a machine: "node3", or "node3 (machine 2)" if several machines have that name.
std::string name_of(const Examination& examination, int machine);

/// All findings, errors first.
std::vector<Finding> findings(const Examination& examination);

// The three parts of `findings`: about single machines, about differences between machines, about
// pairs.
std::vector<Finding> machine_findings(const Examination& examination);
std::vector<Finding> difference_findings(const Examination& examination);
std::vector<Finding> pair_findings(const Examination& examination);

}  // namespace acc::doctor
