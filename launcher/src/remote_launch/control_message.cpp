// SPDX-License-Identifier: Apache-2.0
// Text encoding of the control protocol. Messages to launchers are whole lines on their standard
// input. Answers share standard output with the workers, so they begin with a control character
// (0x1e, record separator) that is unlikely in other output, and may follow an incomplete line of a
// worker.
#include "remote_launch/control_message.hpp"

#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace acc::launcher::remote_launch::control {
namespace {

constexpr std::string_view kAnswer =
    "\x1e"
    "acclaunch ";
constexpr std::size_t kMaxReason = kMaxLine - 512;  // leaves room for the verb and a host name

/// Replaces control characters by spaces and truncates the text to `kMaxReason` bytes.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  if (text.size() > kMaxReason) {
    text.replace(kMaxReason - 3, std::string::npos, "...");
  }
  return text;
}

/// Removes the first word from `line` and returns it.
std::string_view next_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

/// Parses a number from 0 to `largest`.
std::optional<int> number(std::string_view word, int largest) {
  const auto value = read_number(word);
  return value && *value <= largest ? value : std::nullopt;
}

struct Encoder {
  std::string operator()(const Greeting& m) const { return "from " + one_line(m.host); }
  std::string operator()(const Beat& /*m*/) const { return "beat"; }
  std::string operator()(const Signal& m) const { return "signal " + std::to_string(m.number); }
  std::string operator()(const ForceStop& /*m*/) const { return "insist"; }
  std::string operator()(const End& m) const {
    return "end " + std::to_string(m.exit_status) + " " + one_line(m.reason);
  }
  std::string operator()(const Started& m) const { return "started " + m.host; }
  std::string operator()(const Joined& m) const { return "joined " + m.host; }
  std::string operator()(const Lost& m) const { return "lost " + m.host; }
  std::string operator()(const Ended& m) const {
    return "ended " + m.host + " " + std::to_string(m.exit_status) +
           (m.reason.empty() ? "" : " " + one_line(m.reason));
  }
};

std::optional<Answer> decode_answer(std::string_view line) {
  const std::string_view verb = next_word(line);
  std::string host(next_word(line));
  if (host.empty()) {
    return std::nullopt;
  }
  if (verb == "started" && line.empty()) {
    return Started{std::move(host)};
  }
  if (verb == "joined" && line.empty()) {
    return Joined{std::move(host)};
  }
  if (verb == "lost" && line.empty()) {
    return Lost{std::move(host)};
  }
  const auto status = number(next_word(line), 255);
  if (verb != "ended" || !status) {
    return std::nullopt;
  }
  return Ended{std::move(host), *status, std::string(line)};
}

}  // namespace

std::string encode(const Message& message) {
  return std::visit(Encoder(), message) + "\n";
}

std::optional<Message> decode(std::string_view line) {
  const std::string_view verb = next_word(line);
  if (verb == "beat" && line.empty()) {
    return Beat{};
  }
  if (verb == "insist" && line.empty()) {
    return ForceStop{};
  }
  if (verb == "from" && !line.empty()) {
    return Greeting{std::string(line)};
  }
  if (verb == "signal") {
    const auto signal = number(line, SIGRTMAX);
    return signal && *signal > 0 ? std::optional<Message>(Signal{*signal}) : std::nullopt;
  }
  if (verb == "end") {
    const auto status = number(next_word(line), 255);
    return status ? std::optional<Message>(End{*status, std::string(line)}) : std::nullopt;
  }
  return std::nullopt;
}

std::string encode(const Answer& answer) {
  return std::string(kAnswer) + std::visit(Encoder(), answer) + "\n";
}

HeardLine hear(std::string_view line) {
  const std::size_t at = line.find(kAnswer.front());
  if (at == std::string_view::npos || !line.substr(at).starts_with(kAnswer) ||
      !line.ends_with('\n')) {
    return {line, std::nullopt};
  }
  std::string_view said = line.substr(at + kAnswer.size());
  said.remove_suffix(said.ends_with("\r\n") ? 2 : 1);
  auto answer = decode_answer(said);
  return answer ? HeardLine{line.substr(0, at), std::move(answer)} : HeardLine{line, std::nullopt};
}

// Uses one write(2) where possible: POSIX keeps writes of up to PIPE_BUF bytes to a pipe in one
// piece.
void say(const Answer& answer) noexcept {
  const std::string line = encode(answer);
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, line.data() + done, line.size() - done);
    if (count < 0 && errno != EINTR) {
      return;
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

}  // namespace acc::launcher::remote_launch::control
