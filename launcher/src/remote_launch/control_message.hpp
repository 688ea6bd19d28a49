// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

// Protocol between the acclaunch that starts machines (the remote launcher) and the launchers on
// these machines. Both directions consist of text lines. A launcher receives messages on its
// standard input; the end of that input, or a timeout, ends the job on its machine. It sends
// answers on its standard output, between the workers' lines.
namespace acc::launcher::remote_launch::control {

/// First message: the host of the remote launcher.
struct Greeting {
  std::string host;
  bool operator==(const Greeting&) const = default;
};
/// Heartbeat, sent every kBeatInterval.
struct Beat {
  bool operator==(const Beat&) const = default;
};
/// The remote launcher got this signal. The launcher handles it like a signal from its own
/// terminal.
struct Signal {
  int number = 0;
  bool operator==(const Signal&) const = default;
};
/// Second stop request: force the stop.
struct ForceStop {
  bool operator==(const ForceStop&) const = default;
};
/// End the job with this exit status. The reason is one line.
struct End {
  int exit_status = 0;
  std::string reason;
  bool operator==(const End&) const = default;
};
using Message = std::variant<Greeting, Beat, Signal, ForceStop, End>;

constexpr std::chrono::seconds kBeatInterval{1};
/// A connection without a line for this long counts as broken. The limit does not apply while the
/// sender is stopped, which it announces by Signal{SIGTSTP}.
constexpr std::chrono::seconds kSilenceLimit{20};
constexpr std::size_t kMaxLine = 4096;  ///< longest line in bytes, with the newline

/// Encodes a message as a line with its newline: `from node0`, `beat`, `signal 15`, `insist`,
/// `end 2 node3 cannot be reached`. Newlines in a reason become spaces, and a long reason is
/// truncated.
std::string encode(const Message& message);
/// Decodes a line without its newline. Empty if it is not a message.
std::optional<Message> decode(std::string_view line);

/// Answer: the launcher on that host runs in its working directory and starts to plan.
struct Started {
  std::string host;
  bool operator==(const Started&) const = default;
};
/// Answer: the launcher has joined a round. From now on the other machines notice its end by
/// themselves.
struct Joined {
  std::string host;
  bool operator==(const Joined&) const = default;
};
/// Last answer of a launcher. `reason` is empty unless the launcher itself failed.
struct Ended {
  std::string host;
  int exit_status = 0;
  std::string reason;
  bool operator==(const Ended&) const = default;
};
/// Answer: a machine of the launcher's round, `host`, is lost and will send nothing more.
struct Lost {
  std::string host;
  bool operator==(const Lost&) const = default;
};
using Answer = std::variant<Started, Joined, Ended, Lost>;

/// Encodes an answer as a line with its newline: `\x1e` followed by `acclaunch started node1`,
/// `... joined node1`, `... ended node1 2 no such file` or `... lost node2`.
std::string encode(const Answer& answer);

/// A line of a launcher's output.
struct HeardLine {
  std::string_view before;  ///< output before the answer; the whole line if there is no answer
  std::optional<Answer> answer;
};
/// Separates the answer, if there is one, from a line with its newline. The result points into
/// `line`.
HeardLine hear(std::string_view line);

/// Writes an answer to this process's standard output. Errors are ignored: the reader may be gone.
void say(const Answer& answer) noexcept;

}  // namespace acc::launcher::remote_launch::control
