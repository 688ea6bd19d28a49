// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/client_end.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

using namespace acc::launcher;
using Kind = remote_launch::ClientEnd::Kind;

namespace {

constexpr supervision::ProcessEnd exited(int status) {
  return {supervision::ProcessEnd::Kind::exited, status};
}
constexpr supervision::ProcessEnd kKilled{supervision::ProcessEnd::Kind::killed, SIGKILL};

remote_launch::Heard heard(int how_far, std::optional<remote_launch::control::Ended> ended = {}) {
  return {.started = how_far > 0, .joined = how_far > 1, .ended = std::move(ended)};
}

}  // namespace

TEST_CASE("interpretation of the end of an ssh client") {
  struct Case {
    std::string what;
    supervision::ProcessEnd end;
    remote_launch::Heard heard;
    std::string log;
    remote_launch::ClientEnd expected;
  };
  const remote_launch::control::Ended fine{"n", 0, ""};
  const remote_launch::control::Ended of_a_program{"n", 255, ""};
  const remote_launch::control::Ended planless{"n", 2, "no program"};
  const remote_launch::control::Ended gone_on{"n", 1, "timed out"};
  const std::string refused = "ssh: connect to host n port 22: Connection refused";
  const std::string nowhere =
      "no executable acclaunch was found there, neither at /x/acclaunch nor in the PATH of the "
      "login shell";
  const std::vector<Case> cases = {
      {"success", exited(0), heard(2, fine), "", {Kind::ended, 0, ""}},
      {"a program's 255", exited(255), heard(2, of_a_program), "", {Kind::ended, 255, ""}},
      {"a program's 255, with a warning of ssh",
       exited(255),
       heard(2, of_a_program),
       "warning",
       {Kind::ended, 255, ""}},
      {"stopped: no last word", exited(143), heard(2), "", {Kind::ended, 143, ""}},
      {"a guardian whose supervisor was killed", exited(137), heard(2), "", {Kind::ended, 137, ""}},
      {"refused", exited(255), heard(0), refused, {Kind::not_started, 255, refused}},
      {"255 without a word",
       exited(255),
       heard(0),
       "",
       {Kind::not_started, 255, "ssh ended with status 255"}},
      {"lost before it joined",
       exited(255),
       heard(1),
       "Timeout",
       {Kind::not_started, 255, "Timeout"}},
      {"lost in the middle", exited(255), heard(2), "Timeout", {Kind::lost, 255, "Timeout"}},
      {"ssh killed",
       kKilled,
       heard(2),
       "",
       {Kind::lost, 137, "ssh was killed by SIGKILL (signal 9)"}},
      {"ssh killed early",
       kKilled,
       heard(0),
       "",
       {Kind::not_started, 137, "ssh was killed by SIGKILL (signal 9)"}},
      {"no acclaunch", exited(127), heard(0), "", {Kind::not_started, 127, nowhere}},
      {"not for this processor", exited(126), heard(0), "", {Kind::not_started, 126, nowhere}},
      {"a login shell that refuses",
       exited(1),
       heard(0),
       "",
       {Kind::not_started, 1, "its login shell ended with status 1 and has not started acclaunch"}},
      {"a login shell that does nothing",
       exited(0),
       heard(0),
       "",
       {Kind::not_started, 0, "its login shell ended with status 0 and has not started acclaunch"}},
      {"a launcher that is killed early",
       exited(137),
       heard(1),
       "",
       {Kind::not_started, 137, "acclaunch there ended with status 137"}},
      {"a fault in its plan",
       exited(2),
       heard(1, planless),
       "",
       {Kind::not_started, 2, "no program"}},
      {"a fault after it joined", exited(1), heard(2, gone_on), "", {Kind::ended, 1, ""}},
      {"a missing program, reported by its launcher",
       exited(127),
       heard(2, {{"n", 127, ""}}),
       "",
       {Kind::ended, 127, ""}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const remote_launch::ClientEnd end =
        remote_launch::judge_ssh(c.end, c.heard, c.log, "/x/acclaunch");
    CHECK(end.kind == c.expected.kind);
    CHECK(end.exit_status == c.expected.exit_status);
    CHECK(end.reason == c.expected.reason);
  }
}

TEST_CASE("interpretation of the end of a client for all machines") {
  CHECK(remote_launch::judge_group(exited(5), "srun") ==
        remote_launch::ClientEnd{Kind::ended, 5, ""});
  CHECK(remote_launch::judge_group(kKilled, "srun") ==
        remote_launch::ClientEnd{Kind::lost, 137, "srun was killed by SIGKILL (signal 9)"});
}

TEST_CASE("the job's status is that of the lowest-ranked machine that ended by itself") {
  const remote_launch::ClientEnd lost{Kind::lost, 255, "x"};
  const remote_launch::ClientEnd none{Kind::not_started, 255, "x"};
  CHECK(remote_launch::job_status(
            std::vector<remote_launch::ClientEnd>{{Kind::ended, 7, ""}, {Kind::ended, 1, ""}}, 1) ==
        7);
  CHECK(remote_launch::job_status(
            std::vector<remote_launch::ClientEnd>{lost, none, {Kind::ended, 3, ""}}, 1) == 3);
  CHECK(remote_launch::job_status(std::vector<remote_launch::ClientEnd>{lost, none}, 143) == 143);
}

TEST_CASE("srun waits in vain if all machines that have not ended are lost") {
  using namespace remote_launch::control;
  struct Case {
    std::string what;
    std::vector<Answer> heard;
    bool in_vain;
  };
  const Joined a{"a"};
  const Joined b{"b"};
  const Joined c{"c"};
  const Ended a_ended{"a", 1, ""};
  const Ended b_ended{"b", 1, ""};
  const std::vector<Case> cases = {
      {"no machine joined", {}, false},
      {"one is lost, and none has ended", {a, b, c, Lost{"c"}}, false},
      {"one is lost, one still runs", {a, b, c, Lost{"c"}, a_ended}, false},
      {"one is lost, the others have ended", {a, b, c, Lost{"c"}, a_ended, b_ended}, true},
      {"two are lost", {a, b, c, Lost{"c"}, Lost{"b"}, Lost{"b"}, a_ended}, true},
      {"the loss is reported late", {a, b, c, a_ended, b_ended, Lost{"c"}}, true},
      {"none is lost", {a, b, a_ended, b_ended}, false},
      {"none is lost, one still runs", {a, b, a_ended}, false},
      {"a lost machine came back", {a, b, c, Lost{"c"}, c, a_ended, b_ended}, false},
      {"all are lost", {a, b, Lost{"a"}, Lost{"b"}}, false},
  };
  for (const auto& [what, heard, in_vain] : cases) {
    CAPTURE(what);
    remote_launch::Group group;
    for (const Answer& answer : heard) {
      group.hear(answer);
    }
    CHECK(group.waits_in_vain() == in_vain);
  }
}

TEST_CASE("the answers of a client that was killed from here are used") {
  const remote_launch::control::Ended failed{"n", 3, ""};
  CHECK(remote_launch::judge_cut(kKilled, heard(2, failed)) ==
        remote_launch::ClientEnd{Kind::ended, 3, ""});
  CHECK(remote_launch::judge_cut(kKilled, heard(2)) ==
        remote_launch::ClientEnd{Kind::lost, 137, ""});
  CHECK(remote_launch::judge_cut(kKilled, heard(1, failed)) ==
        remote_launch::ClientEnd{Kind::lost, 137, ""});
}
