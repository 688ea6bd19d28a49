// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"

#include "acc/base/token.hpp"
#include "rounds/codec.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

// Ranges of the fields of messages (docs/protocol.md, "Ranges"). Both the sender and the receiver
// check them, so that a user learns which value is wrong before the server refuses it.

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kLastMachine = static_cast<int>(kMaxMachines) - 1;
constexpr int kMaxExitStatus = 255;
constexpr JobTimes::Milliseconds kMinBeatInterval = kMinHeartbeat / kBeatsPerHeartbeat;

void expect_number(std::string_view field, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value < least || value > most) {
    throw Error(Errc::protocol,
                fmt::format("{} is {}, expected {} to {}", field, value, least, most));
  }
}

void expect_time(std::string_view field, JobTimes::Milliseconds value,
                 JobTimes::Milliseconds least) {
  if (value < least || value > kMaxTime) {
    throw Error(Errc::protocol, fmt::format("{} is {} ms, expected {} to {} ms", field,
                                            value.count(), least.count(), kMaxTime.count()));
  }
}

void expect_text(std::string_view field, std::string_view text, std::size_t most) {
  if (text.size() > most) {
    throw Error(Errc::protocol,
                fmt::format("{} has {} bytes, at most {} are expected", field, text.size(), most));
  }
}

/// Checks an address. Workers get it in their environment (MASTER_ADDR), where a NUL byte would cut
/// it and a blank would break scripts.
void expect_address(std::string_view field, std::string_view text) {
  expect_text(field, text, kMaxNameBytes);
  const auto fits = [](char c) { return static_cast<unsigned char>(c) > 0x20 && c != 0x7f; };
  if (text.empty() || !std::ranges::all_of(text, fits)) {
    throw Error(Errc::protocol,
                fmt::format("{} is {}, expected a host name or an address", field,
                            text.empty() ? "empty" : "a text with blanks or control characters"));
  }
}

/// Checks a secret, which workers also get in their environment.
void expect_secret(std::string_view field, std::string_view text) {
  if (!text.empty() && !is_token(text)) {
    throw Error(Errc::protocol, fmt::format("{} is not 32 hexadecimal digits, nor empty", field));
  }
}

void expect_port(std::string_view field, std::uint16_t port) {
  expect_number(field, port, 1, std::numeric_limits<std::uint16_t>::max());
}

void check_terms(const Terms& terms) {
  expect_number("num_machines", terms.num_machines, 1, kMaxMachines);
  expect_number("min_machines", terms.min_machines, 1, terms.num_machines);
  expect_number("num_processes", terms.num_processes, 0, kMaxInt);
  expect_number("max_restarts", terms.max_restarts, 0, kMaxInt);
  for (const auto& [name, value] : terms.agreed) {
    expect_number("the length of a name to agree on", static_cast<std::int64_t>(name.size()), 1,
                  kMaxNameBytes);
    expect_text("a value to agree on", value, kMaxAgreedBytes);
  }
}

void check_times(const JobTimes& times) {
  constexpr JobTimes::Milliseconds kOne{1};
  expect_time("join", times.join, kOne);
  expect_time("last_call", times.last_call, {});
  expect_time("heartbeat", times.heartbeat, kMinHeartbeat);
  expect_time("settle", times.settle, kOne);
  expect_time("close", times.close, {});
}

void check_machine(const Machine& machine) {
  expect_number("machine_rank", machine.machine_rank.value_or(0), 0, kLastMachine);
  expect_text("host", machine.host, kMaxNameBytes);
  expect_address("address", machine.address);
  expect_port("store_port", machine.store_port);
  expect_number("local_world_size", machine.local_world_size, 1, kMaxLocalWorldSize);
  expect_number("pid", machine.pid, 0, kMaxInt);
  expect_secret("secret", machine.secret);
  expect_text("role", machine.role, kMaxNameBytes);
}

void check_end(const AttemptEnd& end, std::size_t max_reason) {
  expect_number("machine_rank of an end", end.machine_rank, -1, kLastMachine);
  expect_text("host of an end", end.host, kMaxNameBytes);
  expect_number("exit_status", end.exit_status, 0, kMaxExitStatus);
  expect_text("reason", end.reason, max_reason);
}

/// Messages without fields, and Report, whose text is only limited by the frame size.
template <typename Message>
void check_fields(const Message& /*message*/) {}

void check_fields(const Enter& enter) {
  expect_text("run_id", enter.run_id, kMaxNameBytes);
  check_terms(enter.terms);
  check_times(enter.times);
  check_machine(enter.machine);
  expect_number("rounds_before", enter.rounds_before, 0, kMaxRoundsBefore);
  expect_number("restarts_before", enter.restarts_before, 0, enter.terms.max_restarts);
  expect_secret("agent", enter.agent);
  expect_number("round of an Enter", enter.round.value_or(0), 0, kMaxInt - 1);
}

void check_fields(const Rejoin& rejoin) {
  expect_port("store_port", rejoin.store_port);
}

void check_fields(const End& message) {
  check_end(message.end, kMaxReasonBytes);
}

void check_metrics(const TrainingMetrics& metrics) {
  constexpr auto kMost = static_cast<std::int64_t>(TrainingMetrics::kMaxEntries);
  const auto expect_name = [](const std::string& name) {
    if (!is_metric_name(name)) {
      throw Error(Errc::protocol, "a metric has a name that is not 1 to 31 printable characters");
    }
  };
  expect_number("step", metrics.step.value_or(0), 0, INT64_MAX);
  expect_number("the number of memory categories", std::ssize(metrics.memory), 0, kMost);
  expect_number("the number of values", std::ssize(metrics.values), 0, kMost);
  for (const auto& [name, nbytes] : metrics.memory) {
    expect_name(name);
    expect_number("memory", nbytes, 0, INT64_MAX);
  }
  for (const auto& [name, value] : metrics.values) {
    expect_name(name);
  }
}

void check_fields(const Status& status) {
  expect_number("the number of ranks", std::ssize(status.ranks), 0, kMaxLocalWorldSize);
  for (const RankStatus& rank : status.ranks) {
    expect_number("rank", rank.rank, 0, kMaxInt);
    expect_number("local_rank", rank.local_rank, 0, kMaxLocalWorldSize - 1);
    expect_number("pid", rank.pid, 0, kMaxInt);
    expect_time("report_age", rank.report_age.value_or(JobTimes::Milliseconds(0)),
                JobTimes::Milliseconds(0));
    expect_number("resident_bytes", rank.resident_bytes.value_or(0), 0, INT64_MAX);
    expect_number("gpu_bytes", rank.gpu_bytes.value_or(0), 0, INT64_MAX);
    expect_text("collective", rank.collective, RankStatus::kMaxCollective);
    expect_time("waiting_for", rank.waiting_for.value_or(JobTimes::Milliseconds(0)),
                JobTimes::Milliseconds(0));
    std::size_t bytes = 0;
    for (const std::string& line : rank.last_stderr_lines) {
      bytes += line.size() + 1;
    }
    expect_number("the bytes of last_stderr_lines", static_cast<std::int64_t>(bytes), 0,
                  RankStatus::kMaxLines);
    check_metrics(rank.metrics);
  }
}

void check_fields(const FailureReport& report) {
  expect_text("report", report.json, kMaxFailureReportBytes);
}

void check_fields(const Welcome& welcome) {
  expect_time("status_interval", welcome.status_interval, JobTimes::Milliseconds(0));
  expect_time("beat_interval", welcome.beat_interval, kMinBeatInterval);
  expect_time("silence_limit", welcome.silence_limit, kMinHeartbeat);
  if (welcome.beat_interval >= welcome.silence_limit) {
    throw Error(Errc::protocol,
                fmt::format("beat_interval is {} ms, expected less than silence_limit, {} ms",
                            welcome.beat_interval.count(), welcome.silence_limit.count()));
  }
}

void check_fields(const Waiting& waiting) {
  expect_text("text", waiting.text, kMaxTextBytes);
}

void check_fields(const Formed& formed) {
  const Round& round = formed.round;
  expect_number("round", round.round, 0, kMaxInt - 1);
  expect_number("restart_count", round.restart_count, 0, kMaxInt);
  expect_number("the number of machines", round.num_machines(), 1, kMaxMachines);
  expect_number("machine_rank", round.machine_rank, 0, round.num_machines() - 1);
  for (const int size : round.local_world_sizes) {
    expect_number("local_world_size", size, 1, kMaxLocalWorldSize);
  }
  expect_address("store_host", round.store_host);
  expect_port("store_port", round.store_port);
  expect_secret("secret", round.secret);
  const int own = round.local_world_sizes[static_cast<std::size_t>(round.machine_rank)];
  expect_number("first_role_rank", round.first_role_rank, 0, kMaxInt - own);
  expect_number("role_world_size", round.role_world_size, round.first_role_rank + own, kMaxInt);
  expect_number("num_kept", round.num_kept, 0, round.num_machines());
}

void check_fields(const Ends& message) {
  check_end(message.end, kMaxTextBytes);
}

void check_fields(const Settled& settled) {
  if (settled.round_result.end) {
    check_end(*settled.round_result.end, kMaxTextBytes);
  }
  int next_rank = 0;  // ranks must increase: each machine reports once
  for (const ReportedMachine& word : settled.round_result.machines) {
    expect_number("machine_rank of a report", word.machine_rank, next_rank, kLastMachine);
    next_rank = word.machine_rank + 1;
    expect_text("host of a report", word.host, kMaxNameBytes);
  }
}

void check_fields(const Dropped& dropped) {
  expect_text("reason", dropped.reason, kMaxTextBytes);
}

void check_fields(const Elsewhere& elsewhere) {
  expect_text("leader", elsewhere.leader, kMaxNameBytes);
}

/// Appends a frame: u32 length, u8 type (the index in the variant), fields.
template <typename Message>
void encode_frame(const Message& message, std::string& out) {
  const std::size_t begin = out.size();  // the length is filled in at the end
  Writer writer(out);
  writer(std::uint32_t{0}, message);
  const auto size = static_cast<std::uint32_t>(out.size() - begin - sizeof(std::uint32_t));
  std::memcpy(out.data() + begin, &size, sizeof size);
}

template <typename Message>
std::optional<Message> take_frame(std::string_view& bytes, std::size_t limit) {
  constexpr std::size_t kNumTypes = std::variant_size_v<Message>;
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) {
    return std::nullopt;
  }
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size > limit) {
    throw Error(Errc::protocol,
                fmt::format("a message of {} bytes, expected 1 to {}", size, limit));
  }
  // The type is checked as soon as its byte is there, before the rest of a wrong frame is buffered.
  Reader reader(bytes.substr(sizeof size, size));
  if (bytes.size() == sizeof size) {
    return std::nullopt;
  }
  const std::uint8_t type = reader.take_byte(kNumTypes - 1);
  if (bytes.size() < sizeof size + size) {
    return std::nullopt;
  }
  std::optional<Message> message(std::in_place);
  reader.take_alternative(type, *message);
  reader.expect_end();
  check(*message);
  bytes.remove_prefix(sizeof size + size);
  return message;
}

}  // namespace

void check(const AgentMessage& message) {
  std::visit([](const auto& fields) { check_fields(fields); }, message);
}

void check(const ServerMessage& message) {
  std::visit([](const auto& fields) { check_fields(fields); }, message);
}

void encode(const AgentMessage& message, std::string& out) {
  encode_frame(message, out);
}

void encode(const ServerMessage& message, std::string& out) {
  encode_frame(message, out);
}

std::optional<AgentMessage> take_agent_message(std::string_view& bytes, std::size_t limit) {
  return take_frame<AgentMessage>(bytes, limit);
}

std::optional<ServerMessage> take_server_message(std::string_view& bytes) {
  return take_frame<ServerMessage>(bytes, kMaxAnswerBytes);
}

}  // namespace acc::rendezvous::rounds
