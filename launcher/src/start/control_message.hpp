#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

// What a starter and the launchers that it started say to each other, a line each. They hear it on
// their standard input, whose end, or silence, is the end of the job there. They answer on their
// standard output, between the workers' lines.
namespace acc::launcher::control {

/// Who speaks: the starter's host. The first line.
struct Greeting {
  std::string host;
  bool operator==(const Greeting&) const = default;
};
/// The starter is there.
struct Beat {
  bool operator==(const Beat&) const = default;
};
/// It got this signal: what a launcher in a terminal would do with it.
struct Signal {
  int number = 0;
  bool operator==(const Signal&) const = default;
};
/// Whoever asked for the end asks for the second time.
struct Insist {
  bool operator==(const Insist&) const = default;
};
/// The job ends with this status, for this reason: one line.
struct End {
  int exit_status = 0;
  std::string reason;
  bool operator==(const End&) const = default;
};
using Message = std::variant<Greeting, Beat, Signal, Insist, End>;

constexpr std::chrono::seconds kBeatInterval{1};
/// After so long without a line the connection is broken. Not while the starter is stopped, of
/// which Signal{SIGTSTP} tells.
constexpr std::chrono::seconds kSilenceLimit{20};
constexpr std::size_t kMaxLine = 4096;

/// `from node0`, `beat`, `signal 15`, `insist`, `end 2 node3 cannot be reached`: with the newline.
/// A reason that is too long, or more than a line, is made one line that fits.
std::string encode(const Message& message);
/// A line without its newline; nothing: it is none of these.
std::optional<Message> decode(std::string_view line);

/// The launcher on that host runs, in its working directory, and plans.
struct Started {
  std::string host;
  bool operator==(const Started&) const = default;
};
/// It has met the other machines: from now on these hear of its end without the starter.
struct Joined {
  std::string host;
  bool operator==(const Joined&) const = default;
};
/// The last it says. A reason: it could not go on.
struct Ended {
  std::string host;
  int exit_status = 0;
  std::string reason;
  bool operator==(const Ended&) const = default;
};
/// A machine of the round that it has met is lost: nothing more is heard of that one.
struct Lost {
  std::string host;
  bool operator==(const Lost&) const = default;
};
using Answer = std::variant<Started, Joined, Ended, Lost>;

/// `\x1e` and `acclaunch started node1`, `... joined node1`, `... ended node1 2 no such file`,
/// `... lost node2`: with the newline.
std::string encode(const Answer& answer);

struct HeardLine {
  std::string_view before;  ///< somebody else's unfinished line, and the whole of any other
  std::optional<Answer> answer;
};
/// A line with its newline.
HeardLine hear(std::string_view line);

/// Writes it to this process's standard output; a reader that is gone is no matter.
void say(const Answer& answer) noexcept;

}  // namespace acc::launcher::control
