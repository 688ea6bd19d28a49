// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include <vector>

namespace acc::rendezvous {
namespace {

using test::encoded;
using test::kSoon;
using test::ping;
using test::pong;
using test::RawClient;
using test::ServerThread;
using test::validate;
using wire::Opcode;

/// Clients before PyTorch 2.2 have no VALIDATE, and their commands begin with SET = 0.
std::string before_validate(std::string frame) {
  --frame[0];
  return frame;
}

TEST_CASE("a client that does not send VALIDATE is disconnected at once and changes nothing") {
  struct Row {
    const char* client;
    std::string bytes;
  };
  const std::string set = encoded({.opcode = Opcode::set, .keys = {"/k"}, .values = {"v"}});
  const std::string add = encoded({.opcode = Opcode::add, .keys = {"init/"}, .number = 1});
  const std::vector<Row> rows{
      {"before 2.2, SET", before_validate(set)},
      {"before 2.2, ADD to init/", before_validate(add)},
      {"with a magic number in front of each command", validate().substr(1) + set},
      {"today's SET without a handshake", set},
      {"today's PING without a handshake", ping(1)},
  };
  for (const Row& row : rows) {
    CAPTURE(row.client);
    ServerThread server({.handshake_timeout = kSoon * 2});  // longer than read_to_end waits
    RawClient client(server.port());
    client.send(row.bytes);
    CHECK(client.read_to_end().empty());
    RawClient witness(server.port());
    witness.send(validate() + encoded({.opcode = Opcode::num_keys}));
    CHECK(witness.read(8) == std::string(8, '\0'));
  }
}

TEST_CASE("an older client that sends VALIDATE is served") {
  ServerThread server;
  RawClient client(server.port());  // without the PING that later versions send next
  client.send(validate());
  client.send(encoded({.opcode = Opcode::add, .keys = {"init/"}, .number = 1}));
  CHECK(client.replies(8) == std::string("\1\0\0\0\0\0\0\0", 8));
}

}  // namespace
}  // namespace acc::rendezvous
