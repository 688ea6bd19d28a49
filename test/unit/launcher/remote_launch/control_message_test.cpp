// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/control_message.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace acc::launcher::remote_launch::control;

TEST_CASE("control messages are decoded as they were encoded") {
  const std::vector<std::pair<Message, std::string>> cases = {
      {Greeting{"node0"}, "from node0\n"},
      {Beat{}, "beat\n"},
      {Signal{15}, "signal 15\n"},
      {ForceStop{}, "insist\n"},
      {End{2, "machine 2 (node2) cannot be started: no"},
       "end 2 machine 2 (node2) cannot be started: no\n"},
      {End{0, ""}, "end 0 \n"},
  };
  for (const auto& [message, line] : cases) {
    CAPTURE(line);
    CHECK(encode(message) == line);
    CHECK(decode(line.substr(0, line.size() - 1)) == message);
  }
}

TEST_CASE("a reason is reduced to one line of limited length") {
  CHECK(encode(Message(End{1, "a\nb\tc"})) == "end 1 a b c\n");
  const std::string line = encode(Message(End{1, std::string(3 * kMaxLine, 'x')}));
  CHECK(line.size() < kMaxLine);
  CHECK(line.ends_with("...\n"));
}

TEST_CASE("invalid control messages are rejected") {
  for (const std::string line : {"",

                                 "beat 1",
                                 "beats",
                                 "BEAT",
                                 "signal",
                                 "signal ",
                                 "signal 0",
                                 "signal -1",
                                 "signal 999",
                                 "signal 15 ",
                                 "signal 15x",
                                 "signal 99999999999",
                                 "insist now",
                                 "from",
                                 "from ",
                                 "end",
                                 "end ",
                                 "end x",
                                 "end 256 no",
                                 "end -1 no",
                                 "\x1e"}) {
    CAPTURE(line);
    CHECK_FALSE(decode(line));
  }
}

TEST_CASE("answers are recognised between other lines") {
  const std::vector<Answer> answers = {Started{"node1"}, Joined{"node1"}, Ended{"node1", 0, ""},
                                       Ended{"node1", 2, "no such file"}, Lost{"node2"}};
  for (const Answer& answer : answers) {
    const std::string line = encode(answer);
    CAPTURE(line);
    CHECK(hear(line).answer == answer);
    CHECK(hear(line).before.empty());
    CHECK(hear("unfinished" + line).answer == answer);
    CHECK(hear("unfinished" + line).before == "unfinished");
  }
}

TEST_CASE("other lines are no answers") {
  for (const std::string line : {"\n", "acclaunch started node1\n", "\x1e\n",
                                 "\x1e"
                                 "acclaunch \n",
                                 "\x1e"
                                 "acclaunch started\n",
                                 "\x1e"
                                 "acclaunch started a b\n",
                                 "\x1e"
                                 "acclaunch lost\n",
                                 "\x1e"
                                 "acclaunch lost a b\n",
                                 "\x1e"
                                 "acclaunch ended node1\n",
                                 "\x1e"
                                 "acclaunch ended node1 300\n",
                                 "\x1e"
                                 "acclaunch started node1"}) {
    CAPTURE(line);
    CHECK_FALSE(hear(line).answer);
    CHECK(hear(line).before == line);
  }
}
