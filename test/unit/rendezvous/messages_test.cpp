// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"

#include "acc/base/error.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace acc::rendezvous::rounds {
namespace {

using acc::test::contains;
using acc::test::error_of;
using namespace std::chrono_literals;

const std::string kSecret = "00112233445566778899aabbccddeeff";
const Machine kMachine{3, "node3", "10.0.0.3", 29400, 8, 4711, true, kSecret, "trainer"};
const AttemptEnd kEnd{2, "node2", 137, true, AttemptEnd::Cause::join, "it has come"};

const std::vector<AgentMessage> kAgentMessages{
    Enter{"run",
          {true, 4, 2, 32, 3, {{"the program", "train"}, {"--zero_stage", ""}}},
          {1s, 2s, 3s, 4s, 5s},
          kMachine,
          5,
          3,
          true,
          kSecret,
          4},
    Enter{"", {}, {}, {.machine_rank = {}, .address = "a", .store_port = 1}},
    Rejoin{65535},
    Beat{},
    End{kEnd},
    ForceStop{},
    Report{true, std::string("a\0b", 3)},
    Leave{},
    Away{},
    Status{{{.rank = 3,
             .local_rank = 1,
             .pid = 17,
             .state = RankStatus::State::failed,
             .metrics = {.step = 7,
                         .loss = -0.5,
                         .wait_s = 1e300,
                         .memory = {{"a", 1}, {"b", 2}},
                         .values = {{"c", 0.25}}},
             .report_age = 5ms,
             .gpu_bytes = 4,
             .collective = "all_gather 7, waiting",
             .waiting_for = 7ms,
             .last_stderr_lines = {"a", ""}},
            {}}},
    FailureReport{"{}"},
};

const std::vector<ServerMessage> kServerMessages{
    Welcome{1s, 5s},
    Welcome{1s, 5s, true, 0ms},
    Beat{},
    Waiting{"waiting for machines 1,2 of 3"},
    Formed{{7, 1, 2, {8, 8, 8, 4, 8}, "10.0.0.1", 1234, kSecret, 16, 36, 4}},
    Ends{kEnd},
    KillWorkers{},
    Settled{{kEnd, {{0, "node0", "{}"}, {1, "node1", ""}}, RoundResult::Next::next_round}},
    Settled{},
    Dropped{Dropped::Why::lost, "it was silent"},
    Elsewhere{"head2:29500"},
};

template <typename Message>
std::string encoded(const Message& message) {
  std::string bytes;
  encode(message, bytes);
  return bytes;
}

std::string encoded_enter() {
  return encoded(kAgentMessages.front());
}

/// Returns `payload` with its length in front.
std::string frame(const std::string& payload) {
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + payload;
}

template <typename Message, typename Take>
void check_round_trip(const Message& message, Take take) {
  const std::string bytes = encoded(message);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::string_view part = std::string_view(bytes).substr(0, size);
    CHECK_FALSE(take(part).has_value());
    CHECK(part.size() == size);
  }
  const std::string two = bytes + bytes;
  std::string_view rest = two;
  CHECK(take(rest) == message);
  CHECK(rest == bytes);
}

auto take_agent = [](std::string_view& bytes) { return take_agent_message(bytes); };

TEST_CASE("each message is decoded as it was encoded, and only when it is complete") {
  for (const AgentMessage& message : kAgentMessages) {
    CAPTURE(message.index());
    check_round_trip(message, take_agent);
  }
  for (const ServerMessage& message : kServerMessages) {
    CAPTURE(message.index());
    check_round_trip(message, take_server_message);
  }
}

/// Returns the bytes of the example in docs/protocol.md that `side` sends.
std::string documented(char side) {
  std::ifstream document(ACC_SOURCE_DIR "/docs/protocol.md");
  std::string bytes;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with(std::string{side, ' '})) {
      std::istringstream numbers(line.substr(1, line.find('#') - 1));
      for (unsigned value = 0; numbers >> std::hex >> value;) {
        bytes.push_back(static_cast<char>(value));
      }
    }
  }
  return bytes;
}

TEST_CASE("the bytes are those in docs/protocol.md") {
  const Enter enter{"42",
                    {.num_machines = 2,
                     .min_machines = 2,
                     .max_restarts = 1,
                     .agreed = {{"the program", "train2"}}},
                    {600s, 30s, 5s, 95s, 30s},
                    {{}, "node1", "10.0.0.1", 29501, 8, 4711, false, kSecret, "default"}};
  CHECK(documented('>') == std::string(kHello) + encoded(AgentMessage{enter}) +
                               encoded(AgentMessage{Report{false, "{}"}}));
  CHECK(documented('<') ==
        encoded(ServerMessage{Welcome{1s, 5s}}) +
            encoded(ServerMessage{Waiting{"waiting for machines: 1 of 2 are here"}}) +
            encoded(ServerMessage{Formed{{0, 0, 0, {8, 8}, "10.0.0.1", 29501, kSecret, 0, 16}}}) +
            encoded(ServerMessage{Settled{}}));
  CHECK(encoded(ServerMessage{Formed{{1, 0, 2, {8, 8, 4}, "a", 5, "", 8, 12, 2}}}) ==
        std::string("\x38\0\0\0\x03"
                    "\x01\0\0\0\0\0\0\0\x02\0\0\0"
                    "\x02\0\0\0\x02\0\0\0\x08\0\0\0\x01\0\0\0\x04\0\0\0"
                    "\x01\0\0\0a\x05\0\0\0\0\0"
                    "\x08\0\0\0\x0c\0\0\0\x02\0\0\0",
                    60));
}

TEST_CASE("the size of Formed does not grow with the number of equal machines") {
  Formed small{{0, 0, 0, std::vector<int>(2, 8), "address", 1}};
  Formed large{{0, 0, 0, std::vector<int>(10'000, 8), "address", 1}};
  CHECK(encoded(ServerMessage{small}).size() == encoded(ServerMessage{large}).size());
}

template <typename Take>
void check_refused(const std::string& bytes, const std::string& message, Take take) {
  CAPTURE(message);
  std::string_view view = bytes;
  const std::string error = error_of([&] { take(view); });
  CHECK_MESSAGE(contains(error, "protocol: " + message), error);
}

TEST_CASE("invalid bytes are refused as soon as they arrive") {
  check_refused(std::string(4, '\0'), "a message of 0 bytes", take_agent);
  check_refused("\xff\xff\xff\x7f", "a message of 2147483647 bytes, expected 1 to 9437184",
                take_agent);
  check_refused(std::string("\x05\0\0\0\x0a", 5), "a byte is 10 where 0 to 9", take_agent);
  check_refused(std::string("\x05\0\0\0\x09", 5), "a byte is 9 where 0 to 8", take_server_message);
  check_refused(frame("\x02x"), "a message is 1 bytes longer", take_agent);
  check_refused(frame("\x01x"), "a field needs 2 bytes, its message has 1 left", take_agent);
  check_refused(frame(std::string("\x05\x02\0\0\0\0", 6)), "a byte is 2 where 0 to 1", take_agent);
  check_refused(frame(std::string("\x05\0\x09\0\0\0ab", 8)),
                "a field needs 9 bytes, its message has 2 left", take_agent);
  check_refused(frame(std::string("\x07\x04\0\0\0\0", 6)), "a byte is 4 where 0 to 3",
                take_server_message);
  const std::string bomb = std::string("\x03", 1) + std::string(12, '\0') +
                           std::string("\x01\0\0\0\xff\xff\xff\xff\x08\0\0\0", 12);
  check_refused(frame(bomb), "a message names 4294967295 machines", take_server_message);
}

TEST_CASE("changing any byte of a message causes no crash") {
  const std::string good = encoded_enter();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0, 1, 2, 127, 128, 255}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      std::string_view view = bytes;
      const std::string error = error_of([&] { take_agent_message(view); });
      CHECK((error.empty() || contains(error, "protocol: ")));
    }
  }
}

Enter good_enter() {
  return std::get<Enter>(kAgentMessages.front());
}

TEST_CASE("a well-formed value out of its range is refused and named") {
  const auto enter = [](auto change, const std::string& message) {
    CAPTURE(message);
    Enter changed = good_enter();
    change(changed);
    check_refused(encoded(AgentMessage{changed}), message, take_agent);
  };
  constexpr int kMax = std::numeric_limits<int>::max();
  enter([](Enter& it) { it.terms.num_machines = 0; }, "num_machines is 0, expected 1 to 65536");
  enter([](Enter& it) { it.terms.num_machines = 65537; },
        "num_machines is 65537, expected 1 to 65536");
  enter([](Enter& it) { it.terms.min_machines = 5; }, "min_machines is 5, expected 1 to 4");
  enter([](Enter& it) { it.terms.num_processes = -1; }, "num_processes is -1, expected 0 to");
  enter([](Enter& it) { it.terms.max_restarts = -1; }, "max_restarts is -1, expected 0 to");
  enter([](Enter& it) { it.machine.local_world_size = kMax; },
        "local_world_size is 2147483647, expected 1 to 32767");
  enter([](Enter& it) { it.machine.local_world_size = 0; }, "local_world_size is 0, expected 1 to");
  enter([](Enter& it) { it.machine.machine_rank = -1; }, "machine_rank is -1, expected 0 to 65535");
  enter([](Enter& it) { it.machine.pid = -1; }, "pid is -1, expected 0 to");
  enter([](Enter& it) { it.machine.store_port = 0; }, "store_port is 0, expected 1 to 65535");
  enter([](Enter& it) { it.machine.address = ""; }, "address is empty, expected a host name");
  enter([](Enter& it) { it.machine.address = "a b"; }, "address is a text with blanks");
  enter([](Enter& it) { it.machine.address = std::string("a\0b", 3); },
        "address is a text with blanks");
  enter([](Enter& it) { it.machine.host.assign(1025, 'x'); }, "host has 1025 bytes, at most 1024");
  enter([](Enter& it) { it.machine.role.assign(1025, 'x'); }, "role has 1025 bytes, at most 1024");
  enter([](Enter& it) { it.run_id.assign(1025, 'x'); }, "run_id has 1025 bytes, at most 1024");
  enter([](Enter& it) { it.times.heartbeat = 4ms; },
        "heartbeat is 4 ms, expected 100 to 315569520000 ms");
  enter([](Enter& it) { it.times.heartbeat = JobTimes::Milliseconds::max(); }, "heartbeat is ");
  enter([](Enter& it) { it.times.join = 0ms; }, "join is 0 ms, expected 1 to");
  enter([](Enter& it) { it.times.last_call = -1ms; }, "last_call is -1 ms, expected 0 to");
  enter([](Enter& it) { it.times.settle = 0ms; }, "settle is 0 ms, expected 1 to");
  enter([](Enter& it) { it.times.close = -1ms; }, "close is -1 ms, expected 0 to");
  enter([](Enter& it) { it.rounds_before = kMax; }, "rounds_before is 2147483647, expected 0 to");
  enter([](Enter& it) { it.restarts_before = 4; }, "restarts_before is 4, expected 0 to 3");
  enter([](Enter& it) { it.terms.agreed[0].first = ""; }, "the length of a name to agree on is 0");
  enter([](Enter& it) { it.terms.agreed[0].second.assign(4097, 'x'); },
        "a value to agree on has 4097 bytes, at most 4096");
  for (const std::string& wrong : {std::string("x"), kSecret + "0", "A" + kSecret.substr(1),
                                   kSecret.substr(1) + std::string(1, '\0')}) {
    enter([&](Enter& it) { it.machine.secret = wrong; }, "secret is not 32 hexadecimal digits");
  }

  const auto formed = [](auto change, const std::string& message) {
    CAPTURE(message);
    Round round{7, 1, 2, {8, 8, 4}, "10.0.0.1", 1234, "", 8, 12};
    change(round);
    check_refused(encoded(ServerMessage{Formed{round}}), message, take_server_message);
  };
  formed([](Round& it) { it.machine_rank = -1; }, "machine_rank is -1, expected 0 to 2");
  formed([](Round& it) { it.machine_rank = 77; }, "machine_rank is 77, expected 0 to 2");
  formed([](Round& it) { it.local_world_sizes = {}; },
         "the number of machines is 0, expected 1 to");
  formed([](Round& it) { it.local_world_sizes[1] = kMax; },
         "local_world_size is 2147483647, expected 1 to 32767");
  formed([](Round& it) { it.local_world_sizes[1] = -8; }, "local_world_size is -8, expected 1 to");
  formed([](Round& it) { it.round = -1; }, "round is -1, expected 0 to");
  formed([](Round& it) { it.restart_count = -1; }, "restart_count is -1, expected 0 to");
  formed([](Round& it) { it.store_host = ""; }, "store_host is empty");
  formed([](Round& it) { it.store_port = 0; }, "store_port is 0, expected 1 to 65535");
  formed([](Round& it) { it.secret = "a b"; }, "secret is not 32 hexadecimal digits");
  formed([](Round& it) { it.first_role_rank = -1; }, "first_role_rank is -1, expected 0 to");
  formed([](Round& it) { it.first_role_rank = kMax; }, "first_role_rank is 2147483647, expected 0");
  formed([](Round& it) { it.role_world_size = 11; }, "role_world_size is 11, expected 12 to");
  formed([](Round& it) { it.num_kept = -1; }, "num_kept is -1, expected 0 to 3");
  formed([](Round& it) { it.num_kept = 4; }, "num_kept is 4, expected 0 to 3");

  const auto end = [](auto change, const std::string& message) {
    CAPTURE(message);
    AttemptEnd changed = kEnd;
    change(changed);
    check_refused(encoded(AgentMessage{End{changed}}), message, take_agent);
    if (changed.reason.size() < kMaxTextBytes) {
      return;
    }
    check_refused(encoded(ServerMessage{Ends{changed}}), "reason has ", take_server_message);
  };
  end([](AttemptEnd& it) { it.machine_rank = -2; }, "machine_rank of an end is -2, expected -1 to");
  end([](AttemptEnd& it) { it.exit_status = 256; }, "exit_status is 256, expected 0 to 255");
  end([](AttemptEnd& it) { it.exit_status = -1; }, "exit_status is -1, expected 0 to 255");
  end([](AttemptEnd& it) { it.reason.assign(100'000, 'x'); },
      "reason has 100000 bytes, at most 4096");

  const auto status = [](auto change, const std::string& message) {
    CAPTURE(message);
    RankStatus changed;
    change(changed);
    check_refused(encoded(AgentMessage{Status{{changed}}}), message, take_agent);
  };
  status([](RankStatus& it) { it.rank = -1; }, "rank is -1, expected 0 to");
  status([](RankStatus& it) { it.local_rank = 32'767; },
         "local_rank is 32767, expected 0 to 32766");
  status([](RankStatus& it) { it.pid = -1; }, "pid is -1, expected 0 to");
  status([](RankStatus& it) { it.state = RankStatus::State::lost; }, "a byte is 5 where 0 to 4");
  status([](RankStatus& it) { it.report_age = -1ms; }, "report_age is -1 ms, expected 0 to");
  status([](RankStatus& it) { it.resident_bytes = -1; }, "resident_bytes is -1, expected 0 to");
  status([](RankStatus& it) { it.gpu_bytes = -1; }, "gpu_bytes is -1, expected 0 to");
  status([](RankStatus& it) { it.collective.assign(257, 'x'); },
         "collective has 257 bytes, at most 256");
  status([](RankStatus& it) { it.waiting_for = -1ms; }, "waiting_for is -1 ms, expected 0 to");
  status([](RankStatus& it) { it.last_stderr_lines.assign(513, "x"); },
         "the bytes of last_stderr_lines is 1026, expected 0 to 1024");
  status([](RankStatus& it) { it.metrics.step = -1; }, "step is -1, expected 0 to");
  status([](RankStatus& it) { it.metrics.memory["a"] = -1; }, "memory is -1, expected 0 to");
  status([](RankStatus& it) { it.metrics.values["a b"] = 0.0; }, "a metric has a name that is not");
  status(
      [](RankStatus& it) {
        for (int i = 0; i < 17; ++i) {
          it.metrics.values[std::to_string(i)] = 0.0;
        }
      },
      "the number of values is 17, expected 0 to 16");
  check_refused(encoded(AgentMessage{FailureReport{std::string((4 << 20) + 1, ' ')}}),
                "report has 4194305 bytes, at most 4194304", take_agent);

  const auto said = [](const ServerMessage& message, const std::string& why) {
    check_refused(encoded(message), why, take_server_message);
  };
  check_refused(encoded(AgentMessage{Rejoin{0}}), "store_port is 0, expected 1 to", take_agent);
  said(Welcome{0ms, 5s}, "beat_interval is 0 ms, expected 20 to");
  said(Welcome{19ms, 5s}, "beat_interval is 19 ms, expected 20 to");
  said(Welcome{20ms, 99ms}, "silence_limit is 99 ms, expected 100 to");
  said(Welcome{5s, 5s}, "beat_interval is 5000 ms, expected less than silence_limit, 5000 ms");
  said(Welcome{1s, 5s, false, -1ms}, "status_interval is -1 ms, expected 0 to");
  said(Settled{{kEnd, {{1, "b", ""}, {1, "b", ""}}}}, "machine_rank of a report is 1, expected 2");
  said(Settled{{kEnd, {{-1, "b", ""}}}}, "machine_rank of a report is -1, expected 0 to 65535");
  said(Waiting{std::string(kMaxTextBytes + 1, 'x')}, "text has 65537 bytes, at most 65536");
  said(Dropped{Dropped::Why::over, std::string(kMaxTextBytes + 1, 'x')}, "reason has 65537 bytes");
  said(Elsewhere{std::string(kMaxNameBytes + 1, 'x')}, "leader has 1025 bytes");
}

TEST_CASE("the largest possible world size fits an int") {
  CHECK(static_cast<std::int64_t>(kMaxMachines) * kMaxLocalWorldSize <=
        std::numeric_limits<int>::max());
}

TEST_CASE("the first message has a smaller size limit") {
  std::string bytes = encoded(AgentMessage{Report{false, std::string(kMaxEnterBytes, 'x')}});
  std::string_view view = bytes;
  CHECK(contains(error_of([&] { take_agent_message(view, kMaxEnterBytes); }), "protocol: "));
  CHECK(take_agent_message(view).has_value());
}

}  // namespace
}  // namespace acc::rendezvous::rounds
