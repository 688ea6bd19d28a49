#pragma once

#include "acc/rendezvous/job.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

/// The agent protocol as plain structs and bytes; no sockets here. docs/protocol.md has the bytes.
///
/// An agent opens with `kHello`. Then both sides send frames: u32 length of what follows, u8 type,
/// the fields in the order of their struct; integers little-endian, a string is u32 length + bytes,
/// a duration i64 milliseconds, an optional u8 0 or 1 before its value, world sizes are sent as
/// runs.
namespace acc::rendezvous::rounds {

/// First byte: no store client (0) and no HTTP client (a letter) begins with it. Last: the version.
inline constexpr std::string_view kHello{
    "\xac"
    "acc\x03",
    5};

/// Of a job. What a message could claim without bounds is memory.
inline constexpr std::size_t kMaxMachines = std::size_t{1} << 16;
/// Workers of one machine: the world size of kMaxMachines machines still fits an int.
inline constexpr int kMaxLocalWorldSize =
    std::numeric_limits<int>::max() / static_cast<int>(kMaxMachines);
/// Limits of rounds and restarts that an agent brings from an earlier server, so that both can go
/// on being counted.
inline constexpr int kMaxRoundsBefore = 1'000'000'000;

/// Shortest heartbeat timeout. An agent beats five times in it, so a shorter one makes it flood.
inline constexpr JobTimes::Milliseconds kMinHeartbeat{100};
inline constexpr int kBeatsPerHeartbeat = 5;
inline constexpr JobTimes::Milliseconds kMaxTime = std::chrono::years(10);

/// Bytes of a run id, a host, an address, the name of a value to agree on.
inline constexpr std::size_t kMaxNameBytes = 1024;
/// Bytes of a reason that an agent gives.
inline constexpr std::size_t kMaxReasonBytes = 4096;
/// Bytes of a reason or a text that the server writes, which may name several machines.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;

/// Terms::agreed: how many there are, and the bytes of one value. All must fit the first message.
inline constexpr std::size_t kMaxAgreed = 256;
inline constexpr std::size_t kMaxAgreedBytes = 4096;

/// Beyond it the connection ends: an agent's report is at most 8 MiB (machine_report.hpp).
inline constexpr std::size_t kMaxMessageBytes = std::size_t{9} << 20;
/// Of the first message: nobody has said yet who he is.
inline constexpr std::size_t kMaxEnterBytes = std::size_t{64} << 10;
/// To an agent, which hears many reports at once.
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;

// From an agent.

/// The first message. Asks for a place in the next round.
struct Enter {
  std::string run_id;
  Terms terms;
  JobTimes times;
  Machine machine;
  /// What it has seen of this job at a server that is gone: rounds go on from there.
  int rounds_before = 0;
  int restarts_before = 0;
  /// Takes no place: asks whether another agent has the one of this machine, or disagrees with it.
  bool only_asks = false;
  bool operator==(const Enter&) const = default;
};
/// After a round that another one follows: asks for a place in it.
struct Rejoin {
  std::uint16_t store_port = 0;  ///< as Machine::store_port, for the new round
  bool operator==(const Rejoin&) const = default;
};
/// Answered with Beat. Any message says as well that the agent is alive.
struct Beat {
  bool operator==(const Beat&) const = default;
};
/// Ends the attempt on every machine, unless it has been ended before. `restarts`: it may be
/// started again, if the job's restarts are not used up.
struct End {
  AttemptEnd end;
  bool operator==(const End&) const = default;
};
/// Whoever wanted the end has said so twice.
struct Insist {
  bool operator==(const Insist&) const = default;
};
/// All workers of this machine have ended; after a failure, End comes before.
struct Report {
  bool failed = false;
  std::string text;
  bool operator==(const Report&) const = default;
};
/// This agent goes. While it waits it gives its place up; in a round it is lost.
struct Leave {
  bool operator==(const Leave&) const = default;
};
using AgentMessage = std::variant<Enter, Rejoin, Beat, End, Insist, Report, Leave>;

// From the server.

struct Welcome {
  JobTimes::Milliseconds beat_interval{1'000};
  JobTimes::Milliseconds silence_limit{5'000};  ///< of either side
  bool operator==(const Welcome&) const = default;
};
/// What this agent waits for: "waiting for machine rank 1; …". At once, then every ten seconds.
struct Waiting {
  std::string text;
  bool operator==(const Waiting&) const = default;
};
struct Formed {
  Round round;
  bool operator==(const Formed&) const = default;
};
/// The attempt has been ended: end the workers, then report.
struct Ends {
  AttemptEnd end;
  bool operator==(const Ends&) const = default;
};
struct Insisted {
  bool operator==(const Insisted&) const = default;
};
struct Settled {
  Settlement settlement;
  bool operator==(const Settled&) const = default;
};
/// This agent has no place in the job, or none any more. The last message; the server then closes.
struct Dropped {
  enum class Why : std::uint8_t {
    config,   ///< it, or another one, was started wrongly
    timeout,  ///< not enough machines came
    over,     ///< the job has ended
    lost,     ///< it was silent for too long
  };
  Why why = Why::config;
  std::string reason;
  bool operator==(const Dropped&) const = default;
};
using ServerMessage =
    std::variant<Welcome, Beat, Waiting, Formed, Ends, Insisted, Settled, Dropped>;

/// Appends the frame.
void encode(const AgentMessage& message, std::string& out);
void encode(const ServerMessage& message, std::string& out);

/// Throws Error(protocol) that names the first field whose value is out of its range, the value and
/// the range. A message that passes can be used without further checks of single fields.
void check(const AgentMessage& message);
void check(const ServerMessage& message);

/// Takes the first complete frame off `bytes`; nothing while it is not there. Throws
/// Error(protocol) as soon as a length, a type or a field cannot be right, and for a message that
/// does not pass `check`.
std::optional<AgentMessage> take_agent_message(std::string_view& bytes,
                                               std::size_t limit = kMaxMessageBytes);
std::optional<ServerMessage> take_server_message(std::string_view& bytes);

}  // namespace acc::rendezvous::rounds
