// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"

#include "server/session.hpp"
#include "support.hpp"

#include <map>
#include <set>

namespace acc::rendezvous {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::from_hex;
using test::RawClient;
using test::ServerThread;

/// Vectors in which PyTorch's server misbehaves, with the replies of this server.
const std::map<std::string, std::string> kDeliberatelyDifferent{
    {"bad_magic", "a wrong magic closes the connection at once, not at the next byte"},
    {"no_handshake_get", "a first command other than VALIDATE closes the connection at once"},
};

bool closes(const json& vector) {
  return vector.at("expect_close").get<bool>() ||
         kDeliberatelyDifferent.contains(vector.at("name"));
}

void replay_steps(const json& vector, std::uint16_t port) {
  std::map<int, RawClient> clients;
  for (const json& step : vector.at("steps")) {
    const int sender = step.at("conn");
    RawClient& client = clients.try_emplace(sender, port).first->second;
    const auto expected = [&](int id) {
      return from_hex(step.at("expect_hex").value(std::to_string(id), ""));
    };
    client.send(bytes_of(step, "send_hex"));
    // The sender first: its reply shows that the step was served.
    CHECK(client.replies(expected(sender).size()) == expected(sender));
    for (auto& [id, other] : clients) {
      if (id != sender) {
        CHECK(other.replies(expected(id).size()) == expected(id));
      }
    }
  }
}

void replay(const json& vector, std::uint16_t port) {
  RawClient client(port);
  client.send(bytes_of(vector, "client_sends_hex"));
  const std::string expected = bytes_of(vector, "server_replies_hex");
  if (closes(vector)) {
    CHECK(client.read_to_end() == expected);
    return;
  }
  if (vector.at("name") == "truncated_frame") {
    client.send(std::string(100 - std::string("short").size(), 'x'));  // the rest of the value
  }
  CHECK(client.replies(expected.size()) == expected);
}

TEST_CASE("the server sends the same replies as PyTorch's") {
  for (const json& vector : test::golden_vectors("server")) {
    const std::string name = vector.at("name");
    CAPTURE(name);
    ServerThread server;
    if (vector.contains("steps")) {
      replay_steps(vector, server.port());
    } else {
      replay(vector, server.port());
    }
  }
}

TEST_CASE("replies do not depend on how the bytes are split") {
  for (const json& vector : test::golden_vectors("server")) {
    if (vector.contains("steps")) {
      continue;
    }
    const std::string name = vector.at("name");
    CAPTURE(name);
    std::string out;
    KeyTable table([&](KeyTable::WaiterId) { out.push_back(wire::kReleased); });
    wire::RequestDecoder decoder;
    Session session(table, 1, decoder);
    bool closed = false;
    try {
      std::string received;
      for (const char byte : bytes_of(vector, "client_sends_hex")) {
        received.push_back(byte);
        std::string_view rest = received;
        while (session.step(rest, out)) {
        }
        received.erase(0, received.size() - rest.size());
      }
    } catch (const Error& error) {
      closed = true;
      CHECK(error.code() == Errc::protocol);
    }
    CHECK(out == bytes_of(vector, "server_replies_hex"));
    CHECK(closed == closes(vector));
  }
}

TEST_CASE("all bytes that PyTorch's client sends are decoded") {
  std::set<wire::Opcode> seen;
  for (const json& vector : test::golden_vectors("client")) {
    const std::string name = vector.at("name");
    CAPTURE(name);
    const std::string bytes = bytes_of(vector, "client_sends_hex");
    wire::RequestDecoder decoder;
    std::string_view rest = bytes;
    std::string again;
    while (const auto request = decoder.next(rest)) {
      seen.insert(request->opcode);
      wire::encode(request->copy(), again);
    }
    CHECK(again == bytes);
  }
  CHECK(seen.size() == wire::kShapes.size());
}

}  // namespace
}  // namespace acc::rendezvous
