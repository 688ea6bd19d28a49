// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job.hpp"
#include "acc/rendezvous/rank_status.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The agent protocol as plain structs, and their encoding as bytes (docs/protocol.md). No sockets.
///
/// An agent opens the connection with `kHello`. Then both sides send frames: u32 length of the
/// rest, u8 type, the fields in the order of their struct (also of those in job.hpp,
/// rank_status.hpp and training_metrics.hpp: a new field is a new version). Integers are
/// little-endian; a string is u32 length + bytes, a duration i64 milliseconds, an optional a u8 0
/// or 1 before its value; world sizes are sent as runs.
///
/// Usual sequence: Enter, Welcome, Waiting ..., Formed; then Beat in both directions until each
/// machine sends Report; Settled; Rejoin if another round follows, else the agent disconnects.
namespace acc::rendezvous::rounds {

/// Start of an agent's connection. The first byte distinguishes it from a TCPStore client (0) and
/// an HTTP client (a letter); the last byte is the protocol version.
inline constexpr std::string_view kHello{
    "\xac"
    "acc\x09",
    5};

/// Limit of the machines of a job. Without it a message could make the receiver allocate any
/// amount.
inline constexpr std::size_t kMaxMachines = std::size_t{1} << 16;
/// Limit of the workers of one machine: the world size of kMaxMachines machines still fits an int.
inline constexpr int kMaxLocalWorldSize =
    std::numeric_limits<int>::max() / static_cast<int>(kMaxMachines);
/// Limit of Enter::rounds_before. It leaves room for counting further rounds in an int.
inline constexpr int kMaxRoundsBefore = 1'000'000'000;

/// Shortest heartbeat timeout. An agent sends kBeatsPerHeartbeat heartbeats per timeout, so a
/// shorter one would flood the server.
inline constexpr JobTimes::Milliseconds kMinHeartbeat{100};
inline constexpr int kBeatsPerHeartbeat = 5;
inline constexpr JobTimes::Milliseconds kMaxTime = std::chrono::years(10);

/// Limit in bytes of a run id, a host, an address, a role, and a name in Terms::agreed.
inline constexpr std::size_t kMaxNameBytes = 1024;
/// Limit in bytes of a reason from an agent.
inline constexpr std::size_t kMaxReasonBytes = 4096;
/// Limit in bytes of a reason or text from the server, which may list several machines.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;

/// Limits of Terms::agreed: number of entries and bytes of one value. All entries together must fit
/// the first message.
inline constexpr std::size_t kMaxAgreed = 256;
inline constexpr std::size_t kMaxAgreedBytes = 4096;

/// Limit of a message from an agent. A report has at most 8 MiB (machine_report.hpp).
inline constexpr std::size_t kMaxMessageBytes = std::size_t{9} << 20;
/// Limit of FailureReport::json.
inline constexpr std::size_t kMaxFailureReportBytes = std::size_t{4} << 20;
/// Limit of the first message of an agent: it is smaller, because the sender is still unknown.
inline constexpr std::size_t kMaxEnterBytes = std::size_t{64} << 10;
/// Limit of a message to an agent, which may contain the reports of many machines.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

// Messages from an agent. The order in AgentMessage defines the type numbers.

/// The first message: asks for a place in the next round.
struct Enter {
  std::string run_id;
  Terms terms;
  JobTimes times;
  Machine machine;
  /// Rounds and restarts of this job at a server that was lost: the new server continues the
  /// counts.
  int rounds_before = 0;
  int restarts_before = 0;
  /// Takes no place: only checks whether another agent has this machine's place or disagrees with
  /// it.
  bool only_asks = false;
  /// Identity of the agent, the same on all its connections (acc/base/token.hpp): on a further one
  /// it continues where the last one ended. Empty: each connection is another agent.
  std::string agent{};
  /// Round whose result the agent has not received; empty: it wants a place.
  std::optional<int> round{};
  bool operator==(const Enter&) const = default;
};
/// After Settled with next_round: asks for a place in the next round.
struct Rejoin {
  std::uint16_t store_port = 0;  ///< as Machine::store_port, for the new round
  bool operator==(const Rejoin&) const = default;
};
/// Heartbeat, in both directions: the server replies with Beat. Any other message also proves that
/// the agent is alive.
struct Beat {
  bool operator==(const Beat&) const = default;
};
/// Ends the attempt on every machine, unless it has ended already. `end.restarts`: this machine
/// permits a restart; the server decides.
struct End {
  AttemptEnd end;
  bool operator==(const End&) const = default;
};
/// Force stop: the user has asked twice for the end and does not want to wait for the workers.
struct ForceStop {
  bool operator==(const ForceStop&) const = default;
};
/// All workers of this machine have ended. After a failure the agent sends End first.
struct Report {
  bool failed = false;
  std::string text;
  bool operator==(const Report&) const = default;
};
/// The agent leaves the job. A waiting agent gives up its place; in a round its machine is lost.
struct Leave {
  bool operator==(const Leave&) const = default;
};
/// The agent ends this connection and will come back on another one (Welcome::recovers): it is lost
/// only if it has not by the heartbeat timeout.
struct Away {
  bool operator==(const Away&) const = default;
};
/// The workers of this machine, for those who watch the job. Counts as a heartbeat and is answered
/// like one. Only sent if Welcome::status_interval is positive; no event of the job.
struct Status {
  std::vector<RankStatus> ranks;
  bool operator==(const Status&) const = default;
};
/// The report of a failed round (docs/report.md), as JSON, for those who watch the job. No event of
/// the job.
struct FailureReport {
  std::string json;
  bool operator==(const FailureReport&) const = default;
};
using AgentMessage =
    std::variant<Enter, Rejoin, Beat, End, ForceStop, Report, Leave, Away, Status, FailureReport>;

// Messages from the server. The order in ServerMessage defines the type numbers.

/// Reply to Enter: the agent has been admitted and must send heartbeats.
struct Welcome {
  JobTimes::Milliseconds beat_interval{1'000};
  JobTimes::Milliseconds silence_limit{5'000};  ///< a side that is silent this long is lost
  /// The server remembers the job even if it is killed: an agent whose connection ends keeps its
  /// workers and connects again.
  bool recovers = false;
  /// Interval at which the server wants Status; 0: it wants none.
  JobTimes::Milliseconds status_interval{1'000};
  bool operator==(const Welcome&) const = default;
};
/// Reason for the wait, for the user: "waiting for machine rank 1; …". Sent at once, then every ten
/// seconds.
struct Waiting {
  std::string text;
  bool operator==(const Waiting&) const = default;
};
/// A round with this machine is formed: start the workers.
struct Formed {
  Round round;
  bool operator==(const Formed&) const = default;
};
/// The attempt has ended: stop the workers, then report.
struct Ends {
  AttemptEnd end;
  bool operator==(const Ends&) const = default;
};
/// Force stop by another machine: kill the workers at once.
struct KillWorkers {
  bool operator==(const KillWorkers&) const = default;
};
/// The round is over.
struct Settled {
  RoundResult round_result;
  bool operator==(const Settled&) const = default;
};
/// The agent has no place in the job, or has lost it. The last message: the server closes the
/// connection after it.
struct Dropped {
  enum class Why : std::uint8_t {
    config,   ///< this machine or another one was started with wrong settings
    timeout,  ///< not enough machines joined
    over,     ///< the job has ended
    lost,     ///< the heartbeat timeout passed, or the connection ends for another reason
  };
  Why why = Why::config;
  std::string reason;
  bool operator==(const Dropped&) const = default;
};
/// This server only stands by, and another one leads: connect to that. The last message. An agent
/// knows the addresses of all servers; `leader` is for people, and empty if there is none.
struct Elsewhere {
  std::string leader;
  bool operator==(const Elsewhere&) const = default;
};
using ServerMessage =
    std::variant<Welcome, Beat, Waiting, Formed, Ends, KillWorkers, Settled, Dropped, Elsewhere>;

/// Appends the message as a frame to `out`.
void encode(const AgentMessage& message, std::string& out);
void encode(const ServerMessage& message, std::string& out);

/// Checks the range of every field (docs/protocol.md, "Ranges"). Throws Error(protocol) with the
/// first wrong field, its value and its range. No further checks of single fields are needed.
void check(const AgentMessage& message);
void check(const ServerMessage& message);

/// Decodes the first frame of `bytes` and removes it; returns nothing while it is incomplete.
/// Throws Error(protocol) as soon as a length, type or field is invalid, and for a message that
/// does not pass `check`.
std::optional<AgentMessage> take_agent_message(std::string_view& bytes,
                                               std::size_t limit = kMaxMessageBytes);
std::optional<ServerMessage> take_server_message(std::string_view& bytes);

}  // namespace acc::rendezvous::rounds
