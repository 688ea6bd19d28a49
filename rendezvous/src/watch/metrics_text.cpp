// SPDX-License-Identifier: Apache-2.0
#include "watch/api.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

// The metrics of docs/watching.md. In both formats a family's lines are together, after its HELP
// and TYPE. OpenMetrics gives a counter's family no `_total`, and ends the text with `# EOF`.
namespace acc::rendezvous::watch {
namespace {

std::string label_value(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '\\': escaped += "\\\\"; break;
      case '"': escaped += "\\\""; break;
      case '\n': escaped += "\\n"; break;
      // Run ids and host names are UTF-8 as a rule; what is not would make the whole text invalid.
      default: escaped += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    }
  }
  return escaped;
}

class MetricsWriter {
 public:
  explicit MetricsWriter(bool is_open_metrics) : is_open_(is_open_metrics) {}

  void family(std::string_view name, std::string_view help, bool is_counter = false) {
    name_ = is_counter ? fmt::format("{}_total", name) : std::string(name);
    const std::string_view shown = is_open_ ? name : std::string_view(name_);
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", shown, help, shown,
                   is_counter ? "counter" : "gauge");
  }
  void value(std::string_view labels, double value) {
    std::string number = fmt::format("{}", value);
    if (!std::isfinite(value)) {
      number = std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
    }
    fmt::format_to(std::back_inserter(text_), "{}{}{}{} {}\n", name_, labels.empty() ? "" : "{",
                   labels, labels.empty() ? "" : "}", number);
  }
  std::string finish() { return std::move(text_) + (is_open_ ? "# EOF\n" : ""); }

 private:
  bool is_open_;
  std::string name_;
  std::string text_;
};

double seconds_of(Board::Time time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// One job with its labels.
struct Labelled {
  const Board::Job* job;
  std::string label;               // job="llama"
  std::vector<std::string> ranks;  // job="llama",rank="0",host="node0"
};

std::vector<Labelled> labelled(const Board& board) {
  std::vector<Labelled> all;
  std::vector<std::string_view> seen;  // a series must be unique: the newest job of an ID counts
  for (const Board::Job* job : board.jobs()) {
    if (std::ranges::find(seen, job->id) != seen.end()) {
      continue;
    }
    seen.push_back(job->id);
    Labelled& each =
        all.emplace_back(Labelled{job, fmt::format("job=\"{}\"", label_value(job->id)), {}});
    const Board::WatchedRound* const round = job->last_round();
    if (job->is_over()) {
      continue;  // its series end
    }
    for (const Board::WatchedRank& rank : job->ranks) {
      const auto machine = static_cast<std::size_t>(rank.machine_rank);
      each.ranks.push_back(fmt::format("{},rank=\"{}\",host=\"{}\"", each.label, rank.status.rank,
                                       label_value(round->machines.at(machine).host)));
    }
  }
  return all;
}

/// A family with one value per rank, for the ranks that have it.
template <typename Get>
void rank_family(MetricsWriter& out, const std::vector<Labelled>& jobs, std::string_view name,
                 std::string_view help, const Get& get) {
  out.family(name, help);
  for (const Labelled& each : jobs) {
    for (std::size_t i = 0; i < each.ranks.size(); ++i) {
      if (const auto value = get(each.job->ranks[i])) {
        out.value(each.ranks[i], static_cast<double>(*value));
      }
    }
  }
}

template <typename Get>
void job_family(MetricsWriter& out, const std::vector<Labelled>& jobs, std::string_view name,
                std::string_view help, const Get& get, bool is_counter = false) {
  out.family(name, help, is_counter);
  for (const Labelled& each : jobs) {
    out.value(each.label, static_cast<double>(get(*each.job)));
  }
}

void put_server(MetricsWriter& out, const Board& board, const ServerFacts& facts) {
  out.family("acc_server_connections", "Open connections of the server.");
  out.value("", static_cast<double>(facts.num_connections));
  out.family("acc_server_watchers", "Open streams of server-sent events.");
  out.value("", static_cast<double>(facts.num_watchers));
  out.family("acc_server_keys", "Keys in the store.");
  out.value("", static_cast<double>(facts.num_keys));
  out.family("acc_jobs", "Jobs by state.");
  for (const auto state :
       {Board::JobState::waiting, Board::JobState::running, Board::JobState::ending,
        Board::JobState::restarting, Board::JobState::finished, Board::JobState::failed,
        Board::JobState::stopped}) {
    const auto all = board.jobs();
    const auto count =
        std::ranges::count(all, state, [](const Board::Job* job) { return job->state; });
    out.value(fmt::format("state=\"{}\"", to_string(state)), static_cast<double>(count));
  }
}

void put_jobs(MetricsWriter& out, const std::vector<Labelled>& jobs) {
  using Job = Board::Job;
  const auto round = [](const Job& job) { return job.last_round(); };
  job_family(out, jobs, "acc_job_up", "1 while the workers of the job run.",
             [](const Job& job) { return job.state == Board::JobState::running ? 1 : 0; });
  job_family(out, jobs, "acc_job_machines", "Machines of the job that are connected.",
             [](const Job& job) {
               return std::ranges::count_if(job.machines, [](const auto& each) {
                 return each.second.state <= Board::MachineState::ended;
               });
             });
  job_family(out, jobs, "acc_job_world_size", "Ranks of the last round.",
             [&](const Job& job) { return round(job) != nullptr ? round(job)->world_size : 0; });
  job_family(
      out, jobs, "acc_job_rounds", "Rounds that were formed.",
      [&](const Job& job) { return round(job) != nullptr ? round(job)->round + 1 : 0; }, true);
  job_family(
      out, jobs, "acc_job_restarts", "Restarts after failures.",
      [&](const Job& job) { return round(job) != nullptr ? round(job)->restarts : 0; }, true);
  out.family("acc_job_slowest_rank", "The rank that the others wait for, where there is one.");
  for (const Labelled& each : jobs) {
    if (const auto slowest = each.job->summary().slowest_rank) {
      out.value(each.label, *slowest);
    }
  }
}

void put_ranks(MetricsWriter& out, const std::vector<Labelled>& jobs) {
  using Rank = Board::WatchedRank;
  const auto scalar = [&](std::string_view name, std::string_view help, auto field) {
    rank_family(out, jobs, name, help,
                [field](const Rank& rank) { return rank.status.metrics.*field; });
  };
  rank_family(out, jobs, "acc_rank_up", "1 while the worker runs.", [](const Rank& rank) {
    return std::optional(rank.status.state == RankStatus::State::running ? 1 : 0);
  });
  scalar("acc_rank_step", "Last step.", &TrainingMetrics::step);
  scalar("acc_rank_loss", "Loss of the last step.", &TrainingMetrics::loss);
  scalar("acc_rank_learning_rate", "Learning rate of the last step.",
         &TrainingMetrics::learning_rate);
  scalar("acc_rank_gradient_norm", "Norm of the gradients of the last step.",
         &TrainingMetrics::gradient_norm);
  scalar("acc_rank_tokens_per_second", "Tokens per second.", &TrainingMetrics::tokens_per_s);
  scalar("acc_rank_step_seconds", "Duration of the last step.", &TrainingMetrics::step_s);
  out.family("acc_rank_step_part_seconds", "Parts of the last step.");
  constexpr std::pair<std::string_view, std::optional<double> TrainingMetrics::*> kParts[] = {
      {"compute", &TrainingMetrics::compute_s},
      {"gather", &TrainingMetrics::gather_s},
      {"reduce", &TrainingMetrics::reduce_s},
      {"wait", &TrainingMetrics::wait_s}};
  for (const Labelled& each : jobs) {
    for (std::size_t i = 0; i < each.ranks.size(); ++i) {
      for (const auto& [part, field] : kParts) {
        if (const auto value = each.job->ranks[i].status.metrics.*field) {
          out.value(fmt::format("{},part=\"{}\"", each.ranks[i], part), *value);
        }
      }
    }
  }
  out.family("acc_rank_memory_bytes", "Memory that the program reports, by category.");
  for (const Labelled& each : jobs) {
    for (std::size_t i = 0; i < each.ranks.size(); ++i) {
      for (const auto& [category, nbytes] : each.job->ranks[i].status.metrics.memory) {
        out.value(fmt::format("{},category=\"{}\"", each.ranks[i], label_value(category)),
                  static_cast<double>(nbytes));
      }
    }
  }
  rank_family(out, jobs, "acc_rank_resident_memory_bytes", "Resident memory of the worker.",
              [](const Rank& rank) { return rank.status.resident_bytes; });
  rank_family(out, jobs, "acc_rank_cpu_cores", "Cores that the worker keeps busy.",
              [](const Rank& rank) {
                const auto percent = rank.status.cpu_percent;
                return percent ? std::optional(*percent / 100.0) : percent;
              });
  rank_family(out, jobs, "acc_rank_gpu_utilization_ratio", "Utilization of the worker's GPU.",
              [](const Rank& rank) {
                const auto percent = rank.status.gpu_percent;
                return percent ? std::optional(*percent / 100.0) : percent;
              });
  rank_family(out, jobs, "acc_rank_gpu_memory_bytes", "Used memory of the worker's GPU.",
              [](const Rank& rank) { return rank.status.gpu_bytes; });
  rank_family(out, jobs, "acc_rank_last_report_timestamp_seconds",
              "Time at which the program reported last.", [](const Rank& rank) {
                return rank.last_report ? std::optional(seconds_of(*rank.last_report))
                                        : std::nullopt;
              });
  out.family("acc_rank_value", "Other values that the program reports, by name.");
  for (const Labelled& each : jobs) {
    for (std::size_t i = 0; i < each.ranks.size(); ++i) {
      for (const auto& [name, value] : each.job->ranks[i].status.metrics.values) {
        out.value(fmt::format("{},name=\"{}\"", each.ranks[i], label_value(name)), value);
      }
    }
  }
}

}  // namespace

std::string metrics_text(const Board& board, const ServerFacts& facts, bool is_open_metrics) {
  MetricsWriter out(is_open_metrics);
  put_server(out, board, facts);
  const std::vector<Labelled> jobs = labelled(board);
  put_jobs(out, jobs);
  put_ranks(out, jobs);
  return out.finish();
}

}  // namespace acc::rendezvous::watch
