// SPDX-License-Identifier: Apache-2.0
// Fuzzes the messages of the agent protocol in both directions. Input: the bytes that one side
// sends, without the hello.
#include "acc/base/error.hpp"
#include "acc/base/token.hpp"
#include "input.hpp"
#include "rounds/messages.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

namespace {

using acc::fuzz::require;
namespace rounds = acc::rendezvous::rounds;

constexpr std::int64_t kMaxInt = 2'147'483'647;

bool is_name(const std::string& text) {
  return text.size() <= 1024;
}

bool is_address(const std::string& text) {
  return !text.empty() && is_name(text) &&
         std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) > ' '; });
}

void check_end(const acc::rendezvous::AttemptEnd& end) {
  require(end.machine_rank >= -1 && end.machine_rank < 65'536, "an end names a machine rank or -1");
  require(end.exit_status >= 0 && end.exit_status < 256, "an exit status fits a byte");
  require(is_name(end.host), "a host name has a limited length");
}

/// Checks the properties on which users of a decoded message rely.
template <typename Message>
void check_meaning(const Message& /*message*/) {}

void check_meaning(const rounds::Enter& enter) {
  const auto& terms = enter.terms;
  require(terms.num_machines >= 1 && terms.num_machines <= 65'536, "num_machines is in its range");
  require(terms.min_machines >= 1 && terms.min_machines <= terms.num_machines,
          "min_machines is in its range");
  require(terms.num_processes >= 0 && terms.max_restarts >= 0, "counts are not negative");
  require(enter.restarts_before >= 0 && enter.restarts_before <= terms.max_restarts,
          "restarts_before is in its range");
  require(enter.rounds_before >= 0 && enter.rounds_before < kMaxInt / 2,
          "further rounds can be counted");
  require(enter.times.heartbeat.count() >= 100, "at most 50 heartbeats per second");
  for (const auto time : {enter.times.join, enter.times.last_call, enter.times.heartbeat,
                          enter.times.settle, enter.times.close}) {
    require(time.count() >= 0 && time < std::chrono::years(11), "a deadline can be computed");
  }
  const auto& machine = enter.machine;
  require(machine.local_world_size >= 1, "a machine has workers");
  require(std::int64_t{machine.local_world_size} * terms.num_machines <= kMaxInt,
          "the world size fits an int");
  require(machine.machine_rank.value_or(0) >= 0, "a machine rank is not negative");
  require(is_address(machine.address) && machine.store_port > 0, "the machine can be reached");
  require(machine.secret.empty() || acc::is_token(machine.secret), "a secret is a token");
  require(is_name(machine.host) && is_name(enter.run_id), "names have a limited length");
}

void check_meaning(const rounds::Rejoin& rejoin) {
  require(rejoin.store_port > 0, "the store can be reached");
}

void check_meaning(const rounds::Status& status) {
  for (const auto& rank : status.ranks) {
    require(rank.rank >= 0 && rank.local_rank >= 0 && rank.pid >= 0, "numbers are not negative");
    require(rank.state != acc::rendezvous::RankStatus::State::lost, "only the server says lost");
    require(rank.metrics.memory.size() <= 16 && rank.metrics.values.size() <= 16,
            "a rank has a limited number of metrics");
    require(rank.collective.size() <= 256, "a rank's collective has a limited length");
    std::size_t bytes = 0;
    for (const std::string& line : rank.last_stderr_lines) {
      bytes += line.size() + 1;
    }
    require(bytes <= 1024, "a rank's lines have a limited length");
    for (const auto& [name, value] : rank.metrics.values) {
      require(acc::is_metric_name(name), "a metric has a printable name");
    }
  }
}

void check_meaning(const rounds::Welcome& welcome) {
  require(welcome.beat_interval.count() >= 20, "at most 50 heartbeats per second");
  require(welcome.beat_interval < welcome.silence_limit, "heartbeats arrive before the timeout");
  require(welcome.silence_limit < std::chrono::years(11), "a deadline can be computed");
}

void check_meaning(const rounds::Formed& formed) {
  const auto& round = formed.round;
  const auto num_machines = static_cast<std::int64_t>(round.local_world_sizes.size());
  require(round.machine_rank >= 0 && round.machine_rank < num_machines,
          "the own machine rank is in the round");
  std::int64_t world_size = 0;
  for (const int size : round.local_world_sizes) {
    require(size >= 1, "a machine has workers");
    world_size += size;
  }
  require(world_size <= kMaxInt, "the world size fits an int");
  require(round.round >= 0 && round.round < kMaxInt && round.restart_count >= 0,
          "counts are in their ranges");
  require(is_address(round.store_host) && round.store_port > 0, "workers can reach the store");
  require(round.secret.empty() || acc::is_token(round.secret), "a secret is a token");
}

void check_meaning(const rounds::End& message) {
  check_end(message.end);
}

void check_meaning(const rounds::Ends& message) {
  check_end(message.end);
}

void check_meaning(const rounds::Settled& settled) {
  int last = -1;
  for (const auto& word : settled.round_result.machines) {
    require(word.machine_rank > last && word.machine_rank < 65'536, "each machine reports once");
    last = word.machine_rank;
  }
  if (settled.round_result.end) {
    check_end(*settled.round_result.end);
  }
}

/// Checks that encoding and decoding preserve a message, and that a prefix of its frame is
/// incomplete, neither a message nor an error.
template <typename Message, typename Take>
void check_message(const Message& message, Take take) {
  std::string frame;
  encode(message, frame);
  for (std::size_t length = 0; length < frame.size(); ++length) {
    std::string_view part = std::string_view(frame).substr(0, length);
    require(!take(part), "a part of a frame is not a message");
    require(part.size() == length, "a part of a frame is not consumed");
  }
  std::string_view whole = frame;
  const auto again = take(whole);
  std::string frame_again;
  encode(*again, frame_again);
  require(frame_again == frame, "encoding and decoding preserve a message");  // also a NaN in it
  require(whole.empty(), "the whole frame is consumed");
}

template <typename Take>
void check_stream(std::string_view bytes, Take take) {
  try {
    while (const auto message = take(bytes)) {
      std::visit([](const auto& fields) { check_meaning(fields); }, *message);
      check_message(*message, take);
    }
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_stream(bytes, [](std::string_view& stream) { return rounds::take_agent_message(stream); });
  check_stream(bytes, [](std::string_view& stream) { return rounds::take_server_message(stream); });
  return 0;
}
