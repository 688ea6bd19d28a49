#include "rounds/messages.hpp"

#include "acc/base/error.hpp"
#include "support.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace acc::rendezvous::rounds {
namespace {

using test::contains;
using test::error_of;
using namespace std::chrono_literals;

const Machine kMachine{3, "node3", "10.0.0.3", 29400, 8, 4711};
const AttemptEnd kEnd{2, "node2", 137, true, AttemptEnd::Cause::membership, "it is gone"};

const std::vector<AgentMessage> kAgentMessages{
    Enter{"run",
          {true, 4, 2, 32, 3, {{"the program", "train"}, {"--zero_stage", ""}}},
          {1s, 2s, 3s, 4s, 5s},
          kMachine,
          5,
          6,
          true},
    Enter{"", {}, {}, {}},
    Rejoin{65535},
    Beat{},
    End{kEnd},
    Insist{},
    Report{true, std::string("a\0b", 3)},
    Leave{},
};

const std::vector<ServerMessage> kServerMessages{
    Welcome{1s, 5s},
    Beat{},
    Waiting{"waiting for machines 1,2 of 3"},
    Formed{{7, 1, 2, {8, 8, 8, 4, 8}, "10.0.0.1", 1234}},
    Formed{},
    Ends{kEnd},
    Insisted{},
    Settled{{kEnd, {{0, "node0", "{}"}, {1, "node1", ""}}, Settlement::Next::next_round}},
    Settled{},
    Dropped{Dropped::Why::lost, "it was silent"},
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

/// `payload` with its length before it.
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

TEST_CASE("each message comes back as it was sent, and never before its last byte") {
  for (const AgentMessage& message : kAgentMessages) {
    CAPTURE(message.index());
    check_round_trip(message, take_agent);
  }
  for (const ServerMessage& message : kServerMessages) {
    CAPTURE(message.index());
    check_round_trip(message, take_server_message);
  }
}

/// The bytes of the example in docs/protocol.md that `side` sends.
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

TEST_CASE("the bytes are those of docs/protocol.md") {
  const Enter enter{"42",
                    {.num_machines = 2,
                     .min_machines = 2,
                     .max_restarts = 1,
                     .agreed = {{"the program", "train2"}}},
                    {600s, 30s, 5s, 95s, 30s},
                    {{}, "node1", "10.0.0.1", 29501, 8, 4711}};
  CHECK(documented('>') == std::string(kHello) + encoded(AgentMessage{enter}) +
                               encoded(AgentMessage{Report{false, "{}"}}));
  CHECK(documented('<') ==
        encoded(ServerMessage{Welcome{1s, 5s}}) +
            encoded(ServerMessage{Waiting{"waiting for machines: 1 of 2 are here"}}) +
            encoded(ServerMessage{Formed{{0, 0, 0, {8, 8}, "10.0.0.1", 29501}}}) +
            encoded(ServerMessage{Settled{}}));
  CHECK(encoded(ServerMessage{Formed{{1, 0, 2, {8, 8, 4}, "a", 5}}}) ==
        std::string("\x28\0\0\0\x03"
                    "\x01\0\0\0\0\0\0\0\x02\0\0\0"
                    "\x02\0\0\0\x02\0\0\0\x08\0\0\0\x01\0\0\0\x04\0\0\0"
                    "\x01\0\0\0a\x05\0",
                    44));
}

TEST_CASE("the message of a round does not grow with machines that are alike") {
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

TEST_CASE("bytes that cannot be right are refused as soon as they are seen") {
  check_refused(std::string(4, '\0'), "a message of 0 bytes", take_agent);
  check_refused("\xff\xff\xff\x7f", "a message of 2147483647 bytes, expected 1 to 9437184",
                take_agent);
  check_refused(std::string("\x05\0\0\0\x07", 5), "a byte is 7 where 0 to 6", take_agent);
  check_refused(std::string("\x05\0\0\0\x08", 5), "a byte is 8 where 0 to 7", take_server_message);
  check_refused(frame("\x02x"), "a message is 1 bytes longer", take_agent);
  check_refused(frame("\x01x"), "a field of 2 bytes has 1 left", take_agent);
  check_refused(frame(std::string("\x05\x02\0\0\0\0", 6)), "a byte is 2 where 0 to 1", take_agent);
  check_refused(frame(std::string("\x05\0\x09\0\0\0ab", 8)), "a field of 9 bytes has 2 left",
                take_agent);
  check_refused(frame(std::string("\x07\x04\0\0\0\0", 6)), "a byte is 4 where 0 to 3",
                take_server_message);
  const std::string bomb = std::string("\x03", 1) + std::string(12, '\0') +
                           std::string("\x01\0\0\0\xff\xff\xff\xff\x08\0\0\0", 12);
  check_refused(frame(bomb), "a message names 4294967295 machines", take_server_message);
}

TEST_CASE("no byte of a message can be changed into a crash") {
  const std::string good = encoded_enter();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0, 1, 2, 127, 128, 255}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      std::string_view view = bytes;
      const std::string error = error_of([&] { take_agent_message(view); });
      CHECK((error == "no error" || contains(error, "protocol: ")));
    }
  }
}

TEST_CASE("the limit of a first message is smaller") {
  std::string bytes = encoded(AgentMessage{Report{false, std::string(kMaxEnterBytes, 'x')}});
  std::string_view view = bytes;
  CHECK(contains(error_of([&] { take_agent_message(view, kMaxEnterBytes); }), "protocol: "));
  CHECK(take_agent_message(view).has_value());
}

}  // namespace
}  // namespace acc::rendezvous::rounds
