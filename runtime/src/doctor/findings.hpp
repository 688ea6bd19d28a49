#pragma once

#include "doctor/facts.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::doctor {

/// `error`: a job would fail or hang. `warning`: it would be slow, or fail later. `note`: worth to
/// know.
enum class Severity { error, warning, note };

std::string_view to_string(Severity severity) noexcept;

struct Finding {
  Severity severity = Severity::note;
  std::string kind;           ///< one word for each of docs/doctor.md
  std::vector<int> machines;  ///< by machine_rank
  std::string what;
  std::string what_to_do;
};

// Thresholds, with their reasons.

/// Bandwidth of a pair below this part of the others' median: twin links of a fabric differ by a
/// few percent; one that negotiated a lower speed, or shares a cable, by a factor of 2 and more.
constexpr double kSlowBandwidth = 0.5;
/// Latency above so many times the others' median, and besides by so much: one more switch adds a
/// few microseconds, a detour over a router or a sleeping CPU much more.
constexpr double kSlowLatency = 3.0;
constexpr double kSlowLatencyUs = 200.0;
/// NTP keeps clocks within some milliseconds; beyond this, lines of logs no longer sort by time.
constexpr double kSkewWarningMs = 100.0;
/// Certificates, Kerberos tickets and makefiles on shared disks start to fail about here.
constexpr double kSkewErrorMs = 60'000.0;
/// A container's usual /dev/shm has 64 MiB: too little for NCCL's buffers, for the loaders of data,
/// and for the ranks' shared weights.
constexpr std::int64_t kLittleShm = std::int64_t{1} << 30;
/// A rank with its CUDA context and buffers of a collective does not start below about this.
constexpr std::int64_t kLittleMemory = std::int64_t{2} << 30;
/// A rank has a connection to each other rank, and data loaders open files by the hundred: the
/// usual soft limit of 1,024 is the first that a large job meets.
constexpr std::int64_t kFewOpenFiles = 4096;
/// NCCL, BLAS, data loaders: some hundred threads a rank, counted over all processes of a user.
constexpr std::int64_t kFewProcesses = 4096;

/// Pairs (a < b) that are much slower than the others, and machines all of whose pairs are: those
/// count once, as a machine.
struct SlowLinks {
  std::vector<int> machines;
  std::vector<std::pair<int, int>> pairs;
};
SlowLinks slow_links(const Examination& examination);

/// Clock of each machine against the median of all, in ms; empty where nobody could ask it.
std::vector<std::optional<double>> clock_offsets_ms(const Examination& examination);

/// "node3", or "node3 (machine 2)" where others are called so, too.
std::string name_of(const Examination& examination, int machine);

/// All that is worth to say, errors first.
std::vector<Finding> findings(const Examination& examination);

// Its parts.
std::vector<Finding> machine_findings(const Examination& examination);
std::vector<Finding> difference_findings(const Examination& examination);
std::vector<Finding> pair_findings(const Examination& examination);

}  // namespace acc::doctor
