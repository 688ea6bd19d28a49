// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::doctor {

constexpr std::int64_t kUnlimited = -1;  ///< value of a system limit that is not set

struct Interface {
  std::string name;
  std::vector<std::string> addresses;
  int mtu = 0;                      ///< bytes
  std::optional<int> speed_mbps{};  ///< as the driver reports it; often missing for virtual ones
};

/// Facts that one machine collects about itself. A text is empty if its value is unknown or does
/// not exist.
struct MachineFacts {
  int machine = 0;  ///< its machine_rank
  std::string host;
  std::string boot_id;  ///< equal for two machine ranks on one machine, also in containers
  std::string kernel;
  std::string architecture;
  std::string acclaunch_version;
  std::string driver_version;
  std::string cuda_version;  ///< newest CUDA version that the driver supports
  std::string nccl_version;
  std::vector<std::string> gpus;
  std::string visible_devices;  ///< NVIDIA_VISIBLE_DEVICES: GPUs that a container should have

  std::string address;                        ///< address that its collectives publish
  std::vector<std::string> name_resolves_to;  ///< addresses of its host name, on itself
  std::vector<Interface> interfaces;
  int port_low = 0, port_high = 0;   ///< the system's range of ephemeral ports
  std::vector<std::uint16_t> ports;  ///< ports in that range on which it answers probes
  std::uint64_t token = 0;           ///< identifies its answers; not 0
  bool has_infiniband = false;

  int cpus = 0;                       ///< CPUs that this process may run on
  std::optional<double> cpu_quota{};  ///< CPUs that the control group (cgroup) allows
  // Memory in bytes:
  std::int64_t memory_total = 0;
  std::int64_t memory_available = 0;       ///< within the control group's limit
  std::int64_t memory_limit = kUnlimited;  ///< limit of the control group
  std::int64_t shm_total = 0, shm_free = 0;
  std::int64_t nofile = 0, memlock = 0, nproc = 0;  ///< soft limits

  /// The interface that has `address`; null if none has.
  [[nodiscard]] const Interface* main_interface() const noexcept;
};

/// Result of an attempt to connect.
enum class Reached {
  yes,
  refused,    ///< refused by the host, because no process listens, or by a firewall
  no_answer,  ///< no packet came back within the limit: packets are dropped
  no_route,
  silent,  ///< accepted by the kernel, but the program does not answer: it is frozen
  other,   ///< another program or machine answers
};

std::string_view to_string(Reached reached) noexcept;

struct Attempt {
  std::string address;
  std::uint16_t port = 0;
  Reached reached = Reached::no_answer;
};

/// Facts that machine `from` measured about machine `to`. All are directed except latency and
/// bandwidth.
struct PairFacts {
  int from = 0, to = 0;
  std::vector<std::string> name_resolves_to;  ///< addresses of `to`'s host name, resolved on `from`
  std::string name_failure;                   ///< why the name does not resolve
  std::vector<Attempt> attempts;
  std::optional<double> clock_offset_ms{};  ///< clock of `to` minus clock of `from`
  std::optional<double> round_trip_us{};    ///< of the clock exchange; half of it bounds the error
  std::optional<double> latency_us{};       ///< time of an all_reduce of one number
  std::optional<double> bandwidth_gbps{};   ///< Gbit/s per direction, both at once (an all_gather)
  bool measured_again = false;              ///< measured again without other traffic
  std::string failure;                      ///< why latency and bandwidth are missing

  /// True if a connection to one of `to`'s ports at that address was answered.
  [[nodiscard]] bool reaches(std::string_view address) const noexcept;
};

/// Facts of all machines and pairs, from which the report is made. `machines` is indexed by
/// machine_rank; a machine that did not answer in time is empty.
struct Examination {
  std::string main_process;  ///< "HOST:PORT" where the machines met; empty for one machine alone
  std::vector<std::optional<MachineFacts>> machines;
  std::vector<PairFacts> pairs;

  [[nodiscard]] const PairFacts* pair(int from, int to) const noexcept;
  /// The worse of the two figures that the machines of a pair measured; empty if neither did.
  [[nodiscard]] std::optional<double> latency_us(int a, int b) const noexcept;
  [[nodiscard]] std::optional<double> bandwidth_gbps(int a, int b) const noexcept;
};

bool is_loopback(std::string_view address) noexcept;

/// JSON texts in which machines exchange facts. The decoders throw Error(protocol) for malformed
/// texts.
std::string encode(const MachineFacts& facts);
std::string encode(const std::vector<PairFacts>& pairs);
MachineFacts decode_machine(const std::string& text);
std::vector<PairFacts> decode_pairs(const std::string& text);

}  // namespace acc::doctor
