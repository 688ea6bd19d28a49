// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/board.hpp"

#include "support/text.hpp"
#include "watch/api.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {
namespace {

using test::contains;
using Json = nlohmann::json;
using std::chrono::seconds;
using State = RankStatus::State;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Machine machine(const std::string& host, int size = 2) {
  return {.machine_rank = {}, .host = host, .address = "a", .local_world_size = size, .pid = 7};
}

Round round_of(std::vector<int> sizes, int number = 0) {
  Round round;
  round.round = number;
  round.local_world_sizes = std::move(sizes);
  return round;
}

AttemptEnd failure(bool restarts) {
  return {.machine_rank = 1, .host = "b", .exit_status = 3, .restarts = restarts, .reason = "why"};
}

watch::Request asked(std::string_view method, std::string_view target) {
  return {
      .method = method, .target = target, .accept = {}, .last_event_id = {}, .authorization = {}};
}

/// A board with a clock that the test moves.
struct Watched {
  Board board;
  Board::Time now{seconds(1000)};

  void tell(const news::News& news, Board::JobNumber job = 0) { board.tell(job, news, now); }
  /// A job `run` of machines a (agent 1) and b (agent 2), with two workers each.
  void begin(const std::string& run = "run", Board::JobNumber job = 0) {
    tell(news::Created{.run_id = run, .min_machines = 2, .num_machines = 2, .max_restarts = 3},
         job);
    tell(news::Joined{1, machine("a")}, job);
    tell(news::Joined{2, machine("b")}, job);
    tell(news::Formed{round_of({2, 2}), {1, 2}}, job);
  }
  Json get(const std::string& target, unsigned status = 200) const {
    const watch::Answer found = watch::answer(asked("GET", target), board, {}, now);
    CHECK_MESSAGE(found.status == status, found.body);
    return Json::parse(found.body + (found.more ? watch::whole(found.more) : ""));
  }
  [[nodiscard]] std::vector<std::string> kinds() const {
    std::vector<std::string> kinds;
    const Json events = get("/api/v1/jobs/run/events")["events"];
    for (const Json& event : events) {
      kinds.push_back(event["kind"]);
    }
    return kinds;
  }
};

RankStatus status_of(int rank, std::int64_t step, double loss = 1.0) {
  RankStatus status{.rank = rank, .state = State::running};
  status.metrics.step = step;
  status.metrics.loss = loss;
  status.report_age = std::chrono::milliseconds(500);
  return status;
}

TEST_CASE("a job's state follows what happens in it") {
  Watched watched;
  const auto state = [&] { return watched.get("/api/v1/jobs/run")["state"]; };
  watched.tell(news::Created{.run_id = "run"});
  CHECK(watched.get("/api/v1/jobs")["jobs"].empty());  // somebody only asks
  watched.tell(news::Joined{1, machine("a")});
  watched.tell(news::Waits{"waiting for machines"});
  CHECK(state() == "waiting");
  CHECK(watched.get("/api/v1/jobs/run")["waiting_for"] == "waiting for machines");
  watched.tell(news::Joined{2, machine("b")});
  watched.tell(news::Formed{round_of({2, 2}), {1, 2}});
  CHECK(state() == "running");
  CHECK(watched.get("/api/v1/jobs/run")["waiting_for"] == "");
  watched.tell(news::Ended{failure(true)});
  CHECK(state() == "ending");
  watched.tell(news::Reported{1});
  watched.tell(news::Gone{2, news::Gone::Why::lost, "no heartbeat"});
  CHECK(watched.get("/api/v1/jobs/run/ranks")["ranks"][3]["state"] == "lost");
  CHECK(watched.get("/api/v1/jobs/run")["machines"][1]["state"] == "lost");
  watched.tell(news::Settled{});
  CHECK(state() == "restarting");
  watched.tell(news::Formed{round_of({2}, 1), {1}});
  CHECK(state() == "running");
  CHECK(watched.get("/api/v1/jobs/run")["machines"].size() == 1);
  AttemptEnd stop = failure(false);
  stop.cause = AttemptEnd::Cause::stop;
  Watched stopped;
  stopped.begin();
  stopped.tell(news::Ended{stop});
  stopped.tell(news::Over{stop});
  CHECK(stopped.get("/api/v1/jobs/run")["state"] == "stopped");
  CHECK(stopped.get("/api/v1/jobs/run")["exit_status"] == 3);
  watched.tell(news::Over{failure(false)});
  CHECK(state() == "failed");
  CHECK(watched.get("/api/v1/jobs/run")["exit_status"] == 3);
  CHECK(watched.kinds() == std::vector<std::string>{"created", "joined", "joined", "round_formed",
                                                    "round_ended", "lost", "round_formed",
                                                    "job_over"});
  CHECK(watched.get("/api/v1/jobs/run/rounds")["rounds"][0]["end"]["cause"] == "worker");
}

TEST_CASE("a machine reports its own ranks only, and the job's values are those of all ranks") {
  Watched watched;
  watched.begin();
  RankStatus fast = status_of(0, 5, kNan);
  fast.metrics.tokens_per_s = 10;
  fast.metrics.wait_s = 0.5;
  RankStatus slow = status_of(2, 5, 3.0);
  slow.metrics.tokens_per_s = 20;
  slow.metrics.wait_s = 0.1;
  slow.metrics.values = {{"x", kNan}, {"y", 1.0}};
  watched.board.update(0, 1, {fast, status_of(2, 99), status_of(-1, 99), status_of(1 << 30, 99)},
                       watched.now);
  watched.board.update(0, 2, {slow}, watched.now);
  watched.board.update(0, 77, {status_of(0, 99)}, watched.now);  // unknown machine
  watched.board.update(8, 1, {status_of(0, 99)}, watched.now);   // unknown job
  const Json job = watched.get("/api/v1/jobs/run");
  CHECK(job["step"] == 5);
  CHECK(job["loss"].is_null());  // that of rank 0
  CHECK(job["tokens_per_s"] == 30);
  CHECK(job["slowest_rank"].is_null());  // one sample of each rank says nothing
  CHECK(job["num_reporting"] == 2);
  const Json ranks = watched.get("/api/v1/jobs/run/ranks")["ranks"];
  CHECK(ranks[0]["not_finite"] == Json::array({"loss"}));
  CHECK(ranks[1]["state"] == "starting");
  CHECK(ranks[2]["not_finite"] == Json::array({"x"}));
  CHECK(ranks[2]["values"] == Json{{"x", nullptr}, {"y", 1.0}});
  CHECK(ranks[2]["last_report"] == 999.5);
  CHECK(watched.get("/api/v1/jobs/run/ranks?from=3&limit=1000")["ranks"].size() == 1);
  CHECK(watched.get("/api/v1/jobs/run/ranks?from=9")["ranks"].empty());
  for (int step = 6; step < 12; ++step) {
    watched.now += seconds(1);
    fast.metrics.step = slow.metrics.step = step;
    watched.board.update(0, 1, {fast}, watched.now);
    watched.board.update(0, 2, {slow}, watched.now);
  }
  CHECK(watched.get("/api/v1/jobs/run")["slowest_rank"] == 2);
  CHECK(contains(watch::whole(watch::metrics_text(watched.board, {}, false)),
                 "acc_job_slowest_rank{job=\"run\"} 2\n"));
}

TEST_CASE("a machine has the ranks of the last round only") {
  Watched watched;
  watched.begin();
  watched.tell(news::Ended{failure(true)});
  watched.tell(news::Reported{1});
  watched.tell(news::Reported{2});
  watched.tell(news::Settled{});
  watched.tell(news::Formed{round_of({1}, 1), {1}});  // a has one worker now, and b has no place
  watched.board.update(0, 1, {status_of(0, 5), status_of(1, 99)}, watched.now);
  watched.board.update(0, 2, {status_of(2, 99), status_of(3, 99)}, watched.now);
  const Json ranks = watched.get("/api/v1/jobs/run/ranks");
  CHECK(ranks["total"] == 1);
  CHECK(ranks["ranks"][0]["step"] == 5);
  const Json machines = watched.get("/api/v1/jobs/run")["machines"];
  CHECK(machines[0]["local_world_size"] == 1);
  CHECK(machines[1]["machine_rank"].is_null());
}

TEST_CASE("memory is bounded: events, points, jobs that are over, ranks and reports") {
  Watched watched;
  watched.begin();
  for (int i = 0; i < 1000; ++i) {
    watched.now += seconds(1);
    watched.tell(news::Refused{machine("c"), std::string(5000, 'x')});
    watched.board.update(0, 1, {status_of(0, i)}, watched.now);
    watched.board.update(0, 1, {status_of(0, i)}, watched.now);  // less than a second later
  }
  const Json events = watched.get("/api/v1/jobs/run/events")["events"];
  CHECK(events.size() == Board::kMaxEvents);
  CHECK(events.back()["number"] == 1004);
  CHECK(events.back()["text"].get<std::string>().size() < 1100);
  const Json points = watched.get("/api/v1/jobs/run/history")["points"];
  CHECK(points.size() > Board::kMaxPoints / 2);
  CHECK(points.size() <= Board::kMaxPoints);
  CHECK(points.front()["step"] == 0);  // the whole job, thinned
  CHECK(points.back()["step"] == 999);
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto distance = points[i]["step"].get<int>() - points[i - 1]["step"].get<int>();
    CHECK(distance >= 1);
    CHECK(distance <= (i <= points.size() - Board::kMaxPoints / 2 ? 9 : 1));
  }
  watched.board.keep_report(0, std::string(Board::kMaxReportBytes + 1, ' '), watched.now);
  watched.get("/api/v1/jobs/run/report", 404);
  for (Board::JobNumber job = 1; job <= 300; ++job) {
    watched.begin("job" + std::to_string(job), job);
    watched.board.keep_report(job, "[" + std::string(1 << 20, ' ') + "]", watched.now);
    watched.tell(news::Over{}, job);
  }
  CHECK(watched.get("/api/v1/jobs")["jobs"].size() == Board::kMaxFinished + 1);
  watched.get("/api/v1/jobs/job1", 404);
  watched.get("/api/v1/jobs/job200/report", 404);  // only the newest 64 MiB of reports are kept
  CHECK(watched.get("/api/v1/jobs/job300/report").is_array());
  watched.tell(news::Created{.run_id = "large"}, 999);
  watched.tell(news::Joined{1, machine("a", 32'767)}, 999);
  std::vector<int> sizes(9, 32'767);
  watched.tell(news::Formed{round_of(sizes), {1, 0, 0, 0, 0, 0, 0, 0, 0}}, 999);
  CHECK(watched.get("/api/v1/jobs/large/ranks")["total"] == 0);  // more than kMaxRanks
}

TEST_CASE("whatever agents send counts as memory, and gives way beyond the limit") {
  Watched watched;
  Board& board = watched.board;
  // A status with everything that one may have.
  const auto full = [](int rank) {
    RankStatus status = status_of(rank, 1);
    status.collective = std::string(RankStatus::kMaxCollective, 'c');
    status.last_stderr_lines = {std::string(RankStatus::kMaxLines, 'l')};
    for (std::size_t i = 0; i < TrainingMetrics::kMaxEntries; ++i) {
      status.metrics.memory[std::string(30, static_cast<char>('a' + i))] = 1;
      status.metrics.values[std::string(30, static_cast<char>('a' + i))] = 1;
    }
    return status;
  };
  const auto lines_of = [&](int rank) {
    return watched
        .get("/api/v1/jobs/run/ranks")["ranks"][static_cast<std::size_t>(rank)]["last_stderr_lines"]
        .size();
  };
  CHECK(board.bytes() == 0);
  watched.begin();
  const std::size_t empty = board.bytes();
  CHECK(empty > sizeof(Board::Job) + 2 * sizeof(Board::WatchedRank));
  board.update(0, 1, {full(0)}, watched.now);
  const std::size_t one = board.bytes() - empty;
  CHECK(one > RankStatus::kMaxCollective + RankStatus::kMaxLines +
                  2 * TrainingMetrics::kMaxEntries * TrainingMetrics::kMaxNameBytes);
  board.update(0, 1, {full(0)}, watched.now);
  CHECK(board.bytes() <= empty + one + 2 * sizeof(Board::Point));
  board.update(0, 1, {status_of(0, 1)}, watched.now);
  CHECK(board.bytes() <= empty + 2 * sizeof(Board::Point));
  board.keep_report(0, "[" + std::string(5000, ' ') + "]", watched.now);
  CHECK(board.bytes() > empty + 5000);

  // A rank for which there is no memory keeps its numbers.
  board.limit_bytes(board.bytes() + one / 2);
  board.update(0, 1, {full(0)}, watched.now);
  CHECK(lines_of(0) == 0);
  CHECK(watched.get("/api/v1/jobs/run/ranks")["ranks"][0]["step"] == 1);
  board.limit_bytes(SIZE_MAX);
  board.update(0, 1, {full(0)}, watched.now);
  CHECK(lines_of(0) == 1);

  // Jobs that are over give way to running ones; a job that does not fit has no ranks.
  watched.begin("old", 1);
  watched.tell(news::Over{}, 1);
  board.limit_bytes(board.bytes());
  watched.begin("new", 2);
  watched.get("/api/v1/jobs/old", 404);
  CHECK(watched.get("/api/v1/jobs/new/ranks")["total"] == 4);
  board.limit_bytes(board.bytes() + 100'000);
  watched.tell(news::Created{.run_id = "large"}, 3);
  watched.tell(news::Joined{1, machine("a", 10'000)}, 3);
  watched.tell(news::Formed{round_of({10'000}), {1}}, 3);
  CHECK(watched.get("/api/v1/jobs/large/ranks")["total"] == 0);

  // Everything is given back.
  board.limit_bytes(SIZE_MAX);
  for (int i = 0; i < 600; ++i) {
    watched.tell(news::Refused{machine("c"), std::string(500, 'x')});
  }
  const std::size_t with_events = board.bytes();
  for (int i = 0; i < 600; ++i) {
    watched.tell(news::Refused{machine("c"), std::string(500, 'x')});
  }
  CHECK(board.bytes() == with_events);
  for (Board::JobNumber job = 10; job < 10 + 2 * Board::kMaxFinished; ++job) {
    watched.begin("job", job);
    board.update(job, 1, {full(0)}, watched.now);
    watched.tell(news::Over{}, job);
  }
  const std::size_t with_jobs = board.bytes();
  for (Board::JobNumber job = 1000; job < 1000 + 2 * Board::kMaxFinished; ++job) {
    watched.begin("job", job);
    board.update(job, 1, {full(0)}, watched.now);
    watched.tell(news::Over{}, job);
  }
  CHECK(board.bytes() == with_jobs);
  board.clear();
  CHECK(board.bytes() == 0);
}

TEST_CASE("a sign of life of a machine that waits is a heartbeat, until the job is over") {
  Watched watched;
  watched.tell(news::Created{.run_id = "run"});
  watched.tell(news::Joined{1, machine("a")});
  const auto heartbeat = [&] {
    watched.now += seconds(5);
    watched.board.update(0, 1, {}, watched.now);
    return watched.get("/api/v1/jobs/run")["machines"][0]["last_heartbeat"].get<double>();
  };
  CHECK(heartbeat() == 1005.0);
  watched.tell(news::Formed{round_of({2}), {1}});
  CHECK(heartbeat() == 1010.0);
  CHECK(watched.get("/api/v1/jobs/run/history")["points"].empty());
  watched.tell(news::Over{});
  CHECK(heartbeat() == 1010.0);
}

TEST_CASE("a rank's collective and its last lines are shown; lines only as far as memory is") {
  Watched watched;
  watched.begin();
  RankStatus status = status_of(1, 5);
  status.collective = "all_gather 7 of unit <b>, waiting";
  status.waiting_for = seconds(3);
  status.last_stderr_lines = {"first", "a \xff \"b\" <img>"};
  watched.board.update(0, 1, {status}, watched.now);
  Json rank = watched.get("/api/v1/jobs/run/ranks")["ranks"][1];
  CHECK(rank["collective"] == status.collective);
  CHECK(rank["waits_since"] == 997.0);
  CHECK(rank["last_stderr_lines"][0] == "first");
  CHECK(rank["last_stderr_lines"].size() == 2);
  status.waiting_for.reset();
  watched.tell(news::Created{.run_id = "large"}, 1);
  watched.tell(news::Joined{3, machine("c", 32'767)}, 1);
  watched.tell(news::Formed{round_of({32'767}), {3}}, 1);
  watched.board.update(0, 1, {status}, watched.now);
  rank = watched.get("/api/v1/jobs/run/ranks")["ranks"][1];
  CHECK(rank["waits_since"].is_null());
  CHECK(rank["last_stderr_lines"].empty());
}

TEST_CASE(
    "a board that is cleared shows jobs of the same number anew; events keep their sequence") {
  Watched watched;
  watched.begin();
  watched.board.keep_report(0, "{}", watched.now);
  watched.tell(news::Over{});
  const auto last = watched.board.find("run")->events.back().number;
  watched.board.clear();
  CHECK(watched.board.jobs().empty());
  watched.begin("next");
  CHECK(watched.board.jobs().size() == 1);
  CHECK(watched.board.find("next")->report.empty());
  CHECK(watched.board.find("next")->events.front().number == last + 1);
}

TEST_CASE("requests: what is refused, and how") {
  Watched watched;
  watched.begin("a b");
  struct Case {
    std::string method, target;
    unsigned status;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"GET", "/api/v1/jobs/a%20b", 200, "\"id\":\"a b\""},
      {"GET", "/api/v1/jobs/a%2", 400, "percent-encoded"},
      {"GET", "/api/v1/jobs/a%zzb", 400, "percent-encoded"},
      {"GET", "/api/v1/jobs/a%20b/ranks?from=-1", 400, "must be numbers"},
      {"GET", "/api/v1/jobs/a%20b/ranks?limit=x", 400, "must be numbers"},
      {"GET", "/api/v1/jobs/a%20b/other", 404, "expected ranks"},
      {"GET", "/api/v1/jobs/none/ranks", 404, "there is no job"},
      {"GET", "/", 200, "<!"},
      {"GET", "/other", 404, "there is no such path"},
      {"POST", "/api/v1/jobs", 405, "only GET and HEAD"}};
  for (const Case& each : cases) {
    CAPTURE(each.target);
    const auto found =
        watch::answer(asked(each.method, each.target), watched.board, {}, watched.now);
    CHECK(found.status == each.status);
    CHECK(contains(found.body, each.message));
  }
}

TEST_CASE("a stream begins with the events after the given one") {
  Watched watched;
  watched.begin();
  const auto stream = [&](const std::string& target, const std::string& last = "") {
    return watch::answer({.method = "GET",
                          .target = target,
                          .accept = "text/event-stream",
                          .last_event_id = last,
                          .authorization = {}},
                         watched.board, {}, watched.now);
  };
  const auto all = stream("/api/v1/events");
  CHECK(all.stream);
  CHECK_FALSE(all.stream->job);
  CHECK(contains(all.body, "id: 1\n"));
  const auto rest = stream("/api/v1/jobs/run/events?after=1", "3");  // the header counts
  CHECK(rest.stream->job == Board::JobNumber{0});
  CHECK_FALSE(contains(rest.body, "id: 3\n"));
  CHECK(contains(rest.body, "id: 4\n"));
  CHECK(contains(rest.body, "event: job\n"));
  CHECK(stream("/api/v1/jobs/run/events?after=x").status == 400);
}

TEST_CASE("metrics: labels are escaped, values may be NaN, each series is there once") {
  Watched watched;
  watched.begin("a\"b\\\n\xff", 0);
  watched.begin("a\"b\\\n\xff", 1);
  watched.board.update(1, 1, {status_of(0, 3, kNan)}, watched.now);
  for (const bool is_open : {false, true}) {
    const std::string text = watch::whole(watch::metrics_text(watched.board, {}, is_open));
    const std::string line = "acc_rank_loss{job=\"a\\\"b\\\\\\n?\",rank=\"0\",host=\"a\"} NaN\n";
    CHECK(contains(text, line));
    CHECK(text.find(line) == text.rfind(line));
    CHECK(text.ends_with("# EOF\n") == is_open);
    CHECK(contains(text, is_open ? "# TYPE acc_job_restarts counter"
                                 : "# TYPE acc_job_restarts_total counter"));
  }
}

}  // namespace
}  // namespace acc::rendezvous
