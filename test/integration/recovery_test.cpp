// SPDX-License-Identifier: Apache-2.0
// A daemon with a state_dir that is killed, stopped or suspended while jobs use it. All processes
// are real.
#include "support/machines.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <fstream>

using namespace acc::test;

namespace {

using Flags = std::vector<std::string>;

/// Returns the number of times that `part` occurs in `text`.
int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// A daemon at a port of its own, and the machines of a job that meet there. Workers run until
/// `let_end`, or fail if `fail` was called with their rank.
struct Meeting {
  void start_daemon() {
    daemon = std::make_unique<Program>(Flags{ACC_BIN_DIR "/acc-rendezvous", "--port", port.text(),
                                             "--state_dir", (folder.path() / "state").string()});
    daemon->wait_for_text("listening on");
  }
  void kill_daemon(int signal = SIGKILL) {
    daemon->signal(signal);
    daemon->wait();
  }
  Program& start_machine(const std::string& nodes, const Flags& more = {}) {
    Flags flags = c10d_flags(nodes, port, {"--rdzv-id", "job", "--rdzv-conf", conf});
    flags.insert(flags.end(), more.begin(), more.end());
    machines.push_back(std::make_unique<Program>(torchrun(
        flags, "echo start $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT end; while [ ! -e " +
                   file("end") + " ]; do [ ! -e " + file("fail") + "$RANK ] || { rm " +
                   file("fail") +
                   "$RANK; echo failing; exit 3; }; sleep 0.05; done; echo done $RANK")));
    return *machines.back();
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return (folder.path() / name).string();
  }
  void let_end() const { std::ofstream(file("end")); }
  void fail(int rank) const { std::ofstream(file("fail" + std::to_string(rank))); }

  const ReservedPort port;
  const TemporaryFolder folder;
  std::string conf = "last_call_timeout=1";
  std::unique_ptr<Program> daemon;
  std::vector<std::unique_ptr<Program>> machines;
};

constexpr const char* kGone = "the workers go on, connecting again";
constexpr const char* kBack = " again\n";  // "connected to the rendezvous at ... again"

}  // namespace

TEST_CASE("recovery: workers do not notice that the daemon is killed or stopped") {
  Meeting meeting;
  meeting.start_daemon();
  Program& one = meeting.start_machine("2");
  Program& other = meeting.start_machine("2");
  one.wait_for_text("start ");
  other.wait_for_text("start ");
  int times = 0;
  for (const int signal : {SIGKILL, SIGTERM, SIGKILL}) {
    ++times;
    meeting.kill_daemon(signal);
    one.wait_for_text(kGone, times);
    other.wait_for_text(kGone, times);
    meeting.start_daemon();
    one.wait_for_text(kBack, 2 * times);  // kGone ends with it, too
    other.wait_for_text(kBack, 2 * times);
  }
  meeting.let_end();
  for (Program* each : {&one, &other}) {
    CHECK(each->wait() == 0);
    CHECK(count_of(each->out(), "start ") == 1);
    CHECK(count_of(each->out(), "done ") == 1);
  }
}

TEST_CASE(
    "recovery: a round that was being formed is formed, and a job that ended during the outage "
    "ends") {
  Meeting meeting;
  meeting.start_daemon();
  Program& one = meeting.start_machine("2");
  one.wait_for_text("waiting for machines: 1 of 2 are here");
  meeting.kill_daemon();
  meeting.start_daemon();
  Program& other = meeting.start_machine("2");
  one.wait_for_text("start ");
  other.wait_for_text("start ");
  meeting.kill_daemon();
  meeting.let_end();
  one.wait_for_text("done ");
  other.wait_for_text("done ");
  meeting.start_daemon();
  CHECK(one.wait() == 0);
  CHECK(other.wait() == 0);
}

TEST_CASE("recovery: a machine that was lost during the outage is found out") {
  Meeting meeting;
  meeting.conf = "last_call_timeout=1,heartbeat_timeout=3";
  meeting.start_daemon();
  Program& first = meeting.start_machine("1:2");
  Program& second = meeting.start_machine("1:2");
  first.wait_for_text("/2 0 end");
  second.wait_for_text("/2 0 end");
  meeting.kill_daemon();
  first.wait_for_text(kGone);
  second.signal(SIGKILL);
  second.wait();
  meeting.start_daemon();
  first.wait_for_text(") is lost: ");
  first.wait_for_text("start 0/1 0 end");
  meeting.let_end();
  CHECK(first.wait() == 0);
}

TEST_CASE("recovery: a worker that fails during the outage restarts the job once") {
  Meeting meeting;
  meeting.conf = "heartbeat_timeout=20";
  meeting.start_daemon();
  const Flags more = {"--max-restarts", "1"};
  Program& one = meeting.start_machine("2", more);
  Program& other = meeting.start_machine("2", more);
  one.wait_for_text("/2 0 end");
  other.wait_for_text("/2 0 end");
  meeting.kill_daemon();
  one.wait_for_text(kGone);
  other.wait_for_text(kGone);
  meeting.fail(0);
  (contains(one.out(), "start 0") ? one : other).wait_for_text("failing\n");
  meeting.start_daemon();
  one.wait_for_text("/2 1 end");
  other.wait_for_text("/2 1 end");
  meeting.let_end();
  CHECK(one.wait() == 0);
  CHECK(other.wait() == 0);
}

TEST_CASE(
    "recovery: a machine that is stopped during the outage does not wait for the daemon for long") {
  Meeting meeting;
  meeting.conf = "heartbeat_timeout=3";
  meeting.start_daemon();
  Program& one = meeting.start_machine("2");
  Program& other = meeting.start_machine("2");
  one.wait_for_text("start ");
  other.wait_for_text("start ");
  meeting.kill_daemon();
  for (Program* each : {&one, &other}) {
    each->wait_for_text(kGone);
    each->signal(SIGTERM);
    CHECK(each->wait() == 128 + SIGTERM);
  }
}

TEST_CASE("recovery: a daemon that was suspended accuses nobody") {
  Meeting meeting;
  meeting.conf = "heartbeat_timeout=3";
  meeting.start_daemon();
  Program& one = meeting.start_machine("2");
  Program& other = meeting.start_machine("2");
  one.wait_for_text("start ");
  other.wait_for_text("start ");
  meeting.daemon->signal(SIGSTOP);
  one.wait_for_text(kGone);  // after the heartbeat timeout
  other.wait_for_text(kGone);
  meeting.daemon->signal(SIGCONT);
  one.wait_for_text(kBack, 2);
  other.wait_for_text(kBack, 2);
  meeting.let_end();
  for (Program* each : {&one, &other}) {
    CHECK(each->wait() == 0);
    CHECK(count_of(each->out(), "start ") == 1);
  }
}

TEST_CASE("recovery: a daemon that has lost its state ends the round, and the next one is formed") {
  Meeting meeting;
  meeting.start_daemon();
  Program& one = meeting.start_machine("1:2");
  one.wait_for_text("start 0/1 0 end");
  meeting.kill_daemon();
  one.wait_for_text(kGone);
  std::filesystem::remove_all(meeting.folder.path() / "state");
  meeting.start_daemon();
  one.wait_for_text("the server does not know it in round 0");
  one.wait_for_text("start 0/1 0 end", 2);
  meeting.let_end();
  CHECK(one.wait() == 0);
}
