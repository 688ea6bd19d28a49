#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::doctor {

constexpr std::int64_t kUnlimited = -1;  ///< of a limit of the system

struct Interface {
  std::string name;
  std::vector<std::string> addresses;
  int mtu = 0;                      ///< bytes
  std::optional<int> speed_mbps{};  ///< what the driver says; virtual ones may say nothing
};

/// What one machine knows of itself. Texts are empty where there is nothing to tell.
struct MachineFacts {
  int machine = 0;  ///< its machine_rank
  std::string host;
  std::string boot_id;  ///< the same on two machines: containers on one, or twice the same one
  std::string kernel;
  std::string architecture;
  std::string acclaunch_version;
  std::string driver_version;
  std::string cuda_version;  ///< newest that the driver can serve
  std::string nccl_version;
  std::vector<std::string> gpus;

  std::string address;  ///< that the collectives tell the others to connect to
  std::vector<std::string> name_resolves_to;  ///< its own host name, on itself
  std::vector<Interface> interfaces;
  int port_low = 0, port_high = 0;   ///< where the system takes free ports from
  std::vector<std::uint16_t> ports;  ///< where it answers the others' probes, spread over these
  std::uint64_t token = 0;           ///< that its answers carry
  bool has_infiniband = false;

  int cpus = 0;                            ///< that this process may run on
  std::optional<double> cpu_quota{};       ///< CPUs that the control group grants
  std::int64_t memory_total = 0;           ///< bytes, as the next ones
  std::int64_t memory_available = 0;       ///< within the control group's limit
  std::int64_t memory_limit = kUnlimited;  ///< of the control group
  std::int64_t shm_total = 0, shm_free = 0;
  std::int64_t nofile = 0, memlock = 0, nproc = 0;  ///< soft limits

  /// The interface that has `address`, or nullptr.
  [[nodiscard]] const Interface* main_interface() const noexcept;
};

/// How an attempt to connect ended.
enum class Reached {
  yes,
  refused,    ///< the host answers that nobody listens, or a firewall does
  no_answer,  ///< not a word within the limit: dropped
  no_route,
  silent,  ///< accepted by the kernel, but the program says nothing: frozen
  other,   ///< somebody else answers
};

std::string_view to_string(Reached reached) noexcept;

struct Attempt {
  std::string address;
  std::uint16_t port = 0;
  Reached reached = Reached::no_answer;
};

/// What one machine measured of another. Directed but for latency and bandwidth.
struct PairFacts {
  int from = 0, to = 0;
  std::vector<std::string> name_resolves_to;  ///< the other's host name, here
  std::string name_failure;                   ///< why it does not
  std::vector<Attempt> attempts;
  std::optional<double> clock_offset_ms{};  ///< of the other's clock against this one
  std::optional<double> round_trip_us{};    ///< of the exchange that says so: its half is the error
  std::optional<double> latency_us{};       ///< of an all_reduce of one number
  std::optional<double> bandwidth_gbps{};   ///< Gbit/s each way, both at once: an all_gather
  bool measured_again = false;              ///< with all others still
  std::string failure;                      ///< why there is no figure

  /// Whether a connection to one of the other's ports at that address was answered.
  [[nodiscard]] bool reaches(std::string_view address) const noexcept;
};

/// What the machine that writes the report has got from all. `machines` by machine_rank; a machine
/// that did not answer in time is empty.
struct Examination {
  std::string main_process;  ///< "HOST:PORT" where they met; empty: a machine alone
  std::vector<std::optional<MachineFacts>> machines;
  std::vector<PairFacts> pairs;

  [[nodiscard]] const PairFacts* pair(int from, int to) const noexcept;
  /// Both directions' view of a figure of the collectives: the worse one.
  [[nodiscard]] std::optional<double> latency_us(int a, int b) const noexcept;
  [[nodiscard]] std::optional<double> bandwidth_gbps(int a, int b) const noexcept;
};

bool is_loopback(std::string_view address) noexcept;

/// JSON texts, by which machines tell each other. The decoders throw Error(protocol).
std::string encode(const MachineFacts& facts);
std::string encode(const std::vector<PairFacts>& pairs);
MachineFacts decode_machine(const std::string& text);
std::vector<PairFacts> decode_pairs(const std::string& text);

}  // namespace acc::doctor
