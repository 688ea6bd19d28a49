#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

// What a starter says to the launchers that it started, on their standard input: a line each. Its
// end, or silence, is the end of the job there.
namespace acc::launcher::control {

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
using Message = std::variant<Beat, Signal, Insist, End>;

constexpr std::chrono::seconds kBeatInterval{1};
/// After so long without a line the connection is broken. Not while the starter is stopped, of
/// which Signal{SIGTSTP} tells.
constexpr std::chrono::seconds kSilenceLimit{20};
constexpr std::size_t kMaxLine = 4096;

/// `beat`, `signal 15`, `insist`, `end 2 node3 cannot be reached`: with the newline.
std::string encode(const Message& message);
/// A line without its newline; nothing: it is none of these.
std::optional<Message> decode(std::string_view line);

}  // namespace acc::launcher::control
