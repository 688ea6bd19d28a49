// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/board_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

// JSON is written directly, because a job may have many thousand ranks and the thread that writes
// also serves the rendezvous: a tree of values would cost several times as much.
namespace acc::rendezvous::watch {
namespace {

/// Writes one JSON object or list: remembers whether a comma is due.
class JsonWriter {
 public:
  /// `is_first`: false in a list that has entries already.
  explicit JsonWriter(std::string& out, bool is_first = true) : out_(out), is_first_(is_first) {}

  JsonWriter& key(std::string_view name) {
    comma();
    fmt::format_to(std::back_inserter(out_), "\"{}\":", name);
    is_first_ = true;  // no comma before the value
    return *this;
  }
  /// A name that a program has chosen.
  JsonWriter& free_key(std::string_view name) {
    comma();
    out_ += json_quoted(name);
    out_ += ':';
    is_first_ = true;
    return *this;
  }
  void open(char bracket) {
    comma();
    out_ += bracket;
    is_first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    is_first_ = false;
  }
  void text(std::string_view value) { raw(json_quoted(value)); }
  void word(std::string_view value) {
    comma();
    fmt::format_to(std::back_inserter(out_), "\"{}\"", value);
  }
  void boolean(bool value) { raw(value ? "true" : "false"); }
  template <typename T>
  requires std::is_integral_v<T>
  void number(T value) {
    comma();
    fmt::format_to(std::back_inserter(out_), "{}", value);
  }
  void number(double value) {
    if (!std::isfinite(value)) {
      return raw("null");
    }
    comma();
    fmt::format_to(std::back_inserter(out_), "{}", value);
  }
  /// Seconds since 1970.
  void number(Board::Time time) {
    using std::chrono::milliseconds;
    const auto since = std::chrono::floor<milliseconds>(time.time_since_epoch()).count();
    comma();
    fmt::format_to(std::back_inserter(out_), "{}.{:03}", since / 1000, since % 1000);
  }
  template <typename T>
  void number(const std::optional<T>& value) {
    value ? number(*value) : raw("null");
  }
  void raw(std::string_view value) {
    comma();
    out_ += value;
  }

 private:
  void comma() {
    if (!std::exchange(is_first_, false)) {
      out_ += ',';
    }
  }

  std::string& out_;
  bool is_first_;
};

/// Begins an answer about a job.
std::string begun(const Board::Job* job) {
  return fmt::format("{{\"format\":1,\"id\":{},", json_quoted(job == nullptr ? "" : job->id));
}

void put_machine(JsonWriter& json, const Board::WatchedMachine& machine) {
  json.open('{');
  json.key("machine_rank").number(machine.rank ? machine.rank : machine.machine.machine_rank);
  json.key("host").text(machine.machine.host);
  json.key("pid").number(machine.machine.pid);
  json.key("local_world_size").number(machine.machine.local_world_size);
  json.key("state").word(to_string(machine.state));
  json.key("last_heartbeat").number(machine.last_heartbeat);
  json.close('}');
}

std::vector<const Board::WatchedMachine*> machines_of(const Board::Job& job) {
  std::vector<const Board::WatchedMachine*> machines;
  for (const auto& [agent, machine] : job.machines) {
    machines.push_back(&machine);
  }
  std::ranges::stable_sort(machines, {}, [](const Board::WatchedMachine* each) {
    return each->rank.value_or(INT32_MAX);
  });
  return machines;
}

void write_job(JsonWriter& json, const Board::Job& job) {
  const Board::Summary all = job.summary();
  const Board::WatchedRound* const round = job.last_round();
  json.open('{');
  json.key("format").number(1);
  json.key("id").text(job.id);
  json.key("state").word(to_string(job.state));
  json.key("reason").text(job.reason);
  json.key("exit_status").number(job.exit_status);
  json.key("waiting_for").text(job.waiting_for);
  json.key("created_at").number(job.created_at);
  json.key("ended_at").number(job.ended_at);
  json.key("round").number(round != nullptr ? std::optional(round->round) : std::nullopt);
  json.key("restarts").number(round != nullptr ? round->restarts : 0);
  json.key("max_restarts").number(job.terms.max_restarts);
  json.key("min_machines").number(job.terms.min_machines);
  json.key("num_machines").number(job.terms.num_machines);
  json.key("world_size").number(round != nullptr ? round->world_size : 0);
  json.key("machines").open('[');
  for (const Board::WatchedMachine* machine : machines_of(job)) {
    put_machine(json, *machine);
  }
  json.close(']');
  json.key("step").number(all.step);
  json.key("loss").number(all.loss);
  json.key("tokens_per_s").number(all.tokens_per_s);
  json.key("learning_rate").number(all.learning_rate);
  json.key("gradient_norm").number(all.gradient_norm);
  json.key("slowest_rank").number(all.slowest_rank);
  json.key("num_reporting").number(all.num_reporting);
  json.key("last_heartbeat").number(all.last_heartbeat);
  json.key("has_report").boolean(!job.report.empty());
  json.key("last_event").number(job.events.empty() ? 0 : job.events.back().number);
  json.close('}');
}

/// Writes the text of a job, which is made once per change.
void put_job(JsonWriter& json, const Board::Job& job) {
  if (job.text.empty() || job.text_of != job.num_changes) {
    job.text.clear();
    JsonWriter writer(job.text);
    write_job(writer, job);
    job.text_of = job.num_changes;
  }
  json.raw(job.text);
}

/// Scalars of a rank by the names of the schema.
constexpr std::pair<std::string_view, std::optional<double> TrainingMetrics::*> kScalarFields[] = {
    {"loss", &TrainingMetrics::loss},
    {"tokens_per_s", &TrainingMetrics::tokens_per_s},
    {"learning_rate", &TrainingMetrics::learning_rate},
    {"gradient_norm", &TrainingMetrics::gradient_norm},
    {"step_s", &TrainingMetrics::step_s},
    {"compute_s", &TrainingMetrics::compute_s},
    {"gather_s", &TrainingMetrics::gather_s},
    {"reduce_s", &TrainingMetrics::reduce_s},
    {"wait_s", &TrainingMetrics::wait_s}};

void put_not_finite(JsonWriter& json, const TrainingMetrics& metrics) {
  json.key("not_finite").open('[');
  for (const auto& [name, field] : kScalarFields) {
    if (metrics.*field && !std::isfinite(*(metrics.*field))) {
      json.word(name);
    }
  }
  for (const auto& [name, value] : metrics.values) {
    if (!std::isfinite(value)) {
      json.text(name);
    }
  }
  json.close(']');
}

void write_rank(JsonWriter& json, const Board::WatchedRank& rank, const std::string& host) {
  const RankStatus& status = rank.status;
  const TrainingMetrics& metrics = status.metrics;
  json.open('{');
  json.key("rank").number(status.rank);
  json.key("local_rank").number(status.local_rank);
  json.key("machine_rank").number(rank.machine_rank);
  json.key("host").text(host);
  json.key("pid").number(status.pid);
  json.key("state").word(to_string(status.state));
  json.key("step").number(metrics.step);
  for (const auto& [name, field] : kScalarFields) {
    json.key(name).number(metrics.*field);
  }
  json.key("memory").open('{');
  for (const auto& [name, nbytes] : metrics.memory) {
    json.free_key(name).number(nbytes);
  }
  json.close('}');
  json.key("resident_bytes").number(status.resident_bytes);
  json.key("cpu_percent").number(status.cpu_percent);
  json.key("collective").text(status.collective);
  json.key("waits_since").number(rank.waits_since);
  json.key("last_stderr_lines").open('[');
  for (const std::string& line : status.last_stderr_lines) {
    json.text(line);
  }
  json.close(']');
  json.key("gpu");
  if (status.gpu_percent || status.gpu_bytes) {
    json.open('{');
    json.key("utilization_percent").number(status.gpu_percent);
    json.key("memory_bytes").number(status.gpu_bytes);
    json.close('}');
  } else {
    json.raw("null");
  }
  json.key("values").open('{');
  for (const auto& [name, value] : metrics.values) {
    json.free_key(name).number(value);
  }
  json.close('}');
  put_not_finite(json, metrics);
  json.key("last_heartbeat").number(rank.last_heartbeat);
  json.key("last_report").number(rank.last_report);
  json.close('}');
}

/// Writes the text of a rank, which is made once per change.
void put_rank(JsonWriter& json, const Board::Job& job, const Board::WatchedRank& rank) {
  const auto machine = static_cast<std::size_t>(rank.machine_rank);
  const std::string& host = job.last_round()->machines.at(machine).host;
  if (!job.keeps_texts) {
    return write_rank(json, rank, host);
  }
  if (rank.text.empty()) {
    JsonWriter writer(rank.text);
    write_rank(writer, rank, host);
  }
  json.raw(rank.text);
}

void put_end(JsonWriter& json, const AttemptEnd& end) {
  json.open('{');
  json.key("cause").word(to_string(end.cause));
  json.key("reason").text(end.reason);
  json.key("exit_status").number(end.exit_status);
  json.key("machine_rank")
      .number(end.machine_rank >= 0 ? std::optional(end.machine_rank) : std::nullopt);
  json.key("host").text(end.host);
  json.key("restarts").boolean(end.restarts);
  json.close('}');
}

void put_round(JsonWriter& json, const Board::WatchedRound& round) {
  json.open('{');
  json.key("round").number(round.round);
  json.key("restarts").number(round.restarts);
  json.key("formed_at").number(round.formed_at);
  json.key("ended_at").number(round.ended_at);
  json.key("world_size").number(round.world_size);
  json.key("machines").open('[');
  for (int rank = 0; const Board::RoundMachine& machine : round.machines) {
    json.open('{');
    json.key("machine_rank").number(rank++);
    json.key("host").text(machine.host);
    json.key("local_world_size").number(machine.local_world_size);
    json.close('}');
  }
  json.close(']');
  json.key("end");
  if (round.end) {
    put_end(json, *round.end);
  } else {
    json.raw("null");
  }
  json.close('}');
}

void put_event(JsonWriter& json, const Board::Event& event) {
  json.open('{');
  json.key("number").number(event.number);
  json.key("time").number(event.time);
  json.key("job").text(event.id);
  json.key("kind").word(to_string(event.kind));
  json.key("host").text(event.host);
  json.key("machine_rank").number(event.machine_rank);
  json.key("round").number(event.round);
  json.key("text").text(event.text);
  json.close('}');
}

void put_point(JsonWriter& json, const Board::Point& point) {
  json.open('{');
  json.key("time").number(point.time);
  json.key("step").number(point.step);
  json.key("loss").number(point.loss);
  json.key("tokens_per_s").number(point.tokens_per_s);
  json.close('}');
}

/// Ends an answer: a list under `name`, each entry written by `put`.
template <typename List, typename Put>
std::string with_list(std::string text, std::string_view name, const List& list, const Put& put) {
  text += fmt::format("\"{}\":", name);
  JsonWriter json(text);
  json.open('[');
  for (const auto& each : list) {
    put(json, each);
  }
  json.close(']');
  text += "}\n";
  return text;
}

/// The same in parts. `put` writes the next entry, or nothing; it returns false after the last one.
template <typename Put>
Parts list_in_parts(std::string text, std::string_view name, Put put) {
  text += fmt::format("\"{}\":[", name);
  return [text = std::move(text), put = std::move(put), is_first = true](std::string& out) mutable {
    out += std::exchange(text, {});
    std::string entries;
    JsonWriter json(entries, is_first);
    while (entries.size() < kPartBytes) {
      if (!put(json)) {
        out += entries + "]}\n";
        return false;
      }
    }
    is_first = false;
    out += entries;
    return true;
  };
}

}  // namespace

std::string whole(const Parts& parts) {
  std::string text;
  while (parts(text)) {
  }
  return text;
}

Parts jobs_json(const Board& board, Board::Time now) {
  std::string text = "{\"format\":1,\"time\":";
  JsonWriter(text).number(now);
  std::vector<Board::JobNumber> numbers;
  for (const Board::Job* job : board.jobs()) {
    numbers.push_back(job->number);
  }
  return list_in_parts(
      text + ",", "jobs",
      [&board, numbers = std::move(numbers), i = std::size_t{0}](JsonWriter& json) mutable {
        if (i == numbers.size()) {
          return false;
        }
        if (const Board::Job* const job = board.find(numbers[i++])) {
          put_job(json, *job);
        }
        return true;
      });
}

std::string job_json(const Board::Job& job) {
  std::string text;
  JsonWriter json(text);
  put_job(json, job);
  return text;
}

Parts ranks_json(FindJob find, std::size_t from, std::size_t limit) {
  const Board::Job& job = *find();
  const Board::WatchedRound* const round = job.last_round();
  std::string text = begun(&job);
  text += round == nullptr ? "\"round\":null," : fmt::format("\"round\":{},", round->round);
  text += fmt::format("\"total\":{},", job.ranks.size());
  const std::size_t begin = std::min(from, job.ranks.size());
  const std::size_t end = begin + std::min(limit, job.ranks.size() - begin);
  return list_in_parts(
      std::move(text), "ranks",
      [find = std::move(find), layout = job.num_layouts, i = begin, end](JsonWriter& json) mutable {
        if (i == end) {
          return false;
        }
        const Board::Job* const now = find();
        if (now == nullptr || now->num_layouts != layout) {
          throw Error(Errc::protocol, "the job has other ranks since the beginning of the answer");
        }
        put_rank(json, *now, now->ranks[i++]);
        return true;
      });
}

Parts rounds_json(FindJob find) {
  const Board::Job& job = *find();
  std::vector<int> numbers;
  for (const Board::WatchedRound& round : job.rounds) {
    numbers.push_back(round.round);
  }
  return list_in_parts(begun(&job), "rounds",
                       [find = std::move(find), numbers = std::move(numbers),
                        i = std::size_t{0}](JsonWriter& json) mutable {
                         if (i == numbers.size()) {
                           return false;
                         }
                         const int number = numbers[i++];
                         const Board::Job* const now = find();
                         for (std::size_t at = 0; now != nullptr && at < now->rounds.size(); ++at) {
                           if (now->rounds[at].round == number) {
                             put_round(json, now->rounds[at]);
                           }
                         }
                         return true;
                       });
}

std::vector<const Board::Event*> events_after(const Board& board, const Board::Job* job,
                                              std::uint64_t after) {
  std::vector<const Board::Event*> events;
  const auto add = [&](const Board::Job& from) {
    for (const Board::Event& event : from.events) {
      if (event.number > after) {
        events.push_back(&event);
      }
    }
  };
  if (job != nullptr) {
    add(*job);
  } else {
    for (const Board::Job* each : board.jobs()) {
      add(*each);
    }
  }
  // There may be a million events of all jobs, of which the last ones are wanted.
  if (events.size() > Board::kMaxEvents) {
    const auto first = events.end() - static_cast<std::ptrdiff_t>(Board::kMaxEvents);
    std::ranges::nth_element(events, first, {}, &Board::Event::number);
    events.erase(events.begin(), first);
  }
  std::ranges::sort(events, {}, &Board::Event::number);
  return events;
}

std::string events_json(const Board& board, const Board::Job* job) {
  return with_list(begun(job), "events", events_after(board, job, 0),
                   [](JsonWriter& json, const Board::Event* event) { put_event(json, *event); });
}

std::string history_json(const Board::Job& job) {
  return with_list(begun(&job), "points", job.points, put_point);
}

std::string event_json(const Board::Event& event) {
  std::string text;
  JsonWriter json(text);
  put_event(json, event);
  return text;
}

std::string error_json(unsigned status, std::string_view message) {
  return fmt::format("{{\"format\":1,\"error\":{{\"status\":{},\"message\":{}}}}}\n", status,
                     json_quoted(message));
}

}  // namespace acc::rendezvous::watch
