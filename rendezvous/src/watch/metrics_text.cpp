// SPDX-License-Identifier: Apache-2.0
#include "watch/api.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

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
  MetricsWriter(std::string& out, bool is_open_metrics) : text_(out), is_open_(is_open_metrics) {}

  /// Begins a family with the name of its series; that of a counter ends in _total.
  void family(std::string_view name, std::string_view help) {
    constexpr std::string_view kTotal = "_total";
    const bool is_counter = name.ends_with(kTotal);
    const std::string_view shown =
        is_counter && is_open_ ? name.substr(0, name.size() - kTotal.size()) : name;
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", shown, help, shown,
                   is_counter ? "counter" : "gauge");
    name_ = name;
  }
  /// Values of the family that was begun earlier, in another part.
  void go_on(std::string_view name) { name_ = name; }
  void value(std::string_view labels, double value) {
    std::string number = fmt::format("{}", value);
    if (!std::isfinite(value)) {
      number = std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
    }
    fmt::format_to(std::back_inserter(text_), "{}{}{}{} {}\n", name_, labels.empty() ? "" : "{",
                   labels, labels.empty() ? "" : "}", number);
  }
  void finish() { text_ += is_open_ ? "# EOF\n" : ""; }

 private:
  std::string& text_;
  bool is_open_;
  std::string_view name_;
};

double seconds_of(Board::Time time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

std::string label_of(const Board::Job& job) {
  return fmt::format("job=\"{}\"", label_value(job.id));
}

/// Labels of a rank: job="llama",rank="0",host="node0".
std::string label_of(const Board::Job& job, const Board::WatchedRank& rank) {
  const auto machine = static_cast<std::size_t>(rank.machine_rank);
  return fmt::format("{},rank=\"{}\",host=\"{}\"", label_of(job), rank.status.rank,
                     label_value(job.last_round()->machines.at(machine).host));
}

/// A family of the jobs, with the values of one job, or of the ranks, with those of one rank.
struct Family {
  using OfJob = std::function<void(MetricsWriter&, const Board::Job&)>;
  using OfRank = std::function<void(MetricsWriter&, const Board::Job&, const Board::WatchedRank&)>;

  std::string_view name;
  std::string_view help;
  OfJob of_job{};
  OfRank of_rank{};
};

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

template <typename Get>
Family job_family(std::string_view name, std::string_view help, Get get) {
  return {name, help, [get](MetricsWriter& out, const Board::Job& job) {
            out.value(label_of(job), static_cast<double>(get(job)));
          }};
}

/// A family with one value per rank, for the ranks that have it.
template <typename Get>
Family rank_family(std::string_view name, std::string_view help, Get get) {
  return {
      .name = name,
      .help = help,
      .of_rank = [get](MetricsWriter& out, const Board::Job& job, const Board::WatchedRank& rank) {
        if (const auto value = get(rank)) {
          out.value(label_of(job, rank), static_cast<double>(*value));
        }
      }};
}

/// A family with several values per rank: `list` calls its second argument with label and value.
template <typename List>
Family labelled_family(std::string_view name, std::string_view help, std::string_view label,
                       List list) {
  return {.name = name,
          .help = help,
          .of_rank = [label, list](MetricsWriter& out, const Board::Job& job,
                                   const Board::WatchedRank& rank) {
            list(rank.status.metrics, [&](std::string_view text, double value) {
              out.value(fmt::format("{},{}=\"{}\"", label_of(job, rank), label, label_value(text)),
                        value);
            });
          }};
}

const std::vector<Family>& families() {
  using Job = Board::Job;
  using Rank = Board::WatchedRank;
  const auto round = [](const Job& job) { return job.last_round(); };
  const auto scalar = [](std::string_view name, std::string_view help, auto field) {
    return rank_family(name, help,
                       [field](const Rank& rank) { return rank.status.metrics.*field; });
  };
  const auto percent = [](std::optional<double> value) {
    return value ? std::optional(*value / 100.0) : value;
  };
  static const std::vector<Family> all = {
      job_family("acc_job_up", "1 while the workers of the job run.",
                 [](const Job& job) { return job.state == Board::JobState::running ? 1 : 0; }),
      job_family("acc_job_machines", "Machines of the job that are connected.",
                 [](const Job& job) {
                   return std::ranges::count_if(job.machines, [](const auto& each) {
                     return each.second.state <= Board::MachineState::ended;
                   });
                 }),
      job_family(
          "acc_job_world_size", "Ranks of the last round.",
          [round](const Job& job) { return round(job) != nullptr ? round(job)->world_size : 0; }),
      job_family(
          "acc_job_rounds_total", "Rounds that were formed.",
          [round](const Job& job) { return round(job) != nullptr ? round(job)->round + 1 : 0; }),
      job_family(
          "acc_job_restarts_total", "Restarts after failures.",
          [round](const Job& job) { return round(job) != nullptr ? round(job)->restarts : 0; }),
      {"acc_job_slowest_rank", "The rank that the others wait for, where there is one.",
       [](MetricsWriter& out, const Job& job) {
         if (const auto slowest = job.summary().slowest_rank) {
           out.value(label_of(job), *slowest);
         }
       }},
      rank_family("acc_rank_up", "1 while the worker runs.",
                  [](const Rank& rank) {
                    return std::optional(rank.status.state == RankStatus::State::running ? 1 : 0);
                  }),
      scalar("acc_rank_step", "Last step.", &TrainingMetrics::step),
      scalar("acc_rank_loss", "Loss of the last step.", &TrainingMetrics::loss),
      scalar("acc_rank_learning_rate", "Learning rate of the last step.",
             &TrainingMetrics::learning_rate),
      scalar("acc_rank_gradient_norm", "Norm of the gradients of the last step.",
             &TrainingMetrics::gradient_norm),
      scalar("acc_rank_tokens_per_second", "Tokens per second.", &TrainingMetrics::tokens_per_s),
      scalar("acc_rank_step_seconds", "Duration of the last step.", &TrainingMetrics::step_s),
      labelled_family(
          "acc_rank_step_part_seconds", "Parts of the last step.", "part",
          [](const TrainingMetrics& metrics, const auto& put) {
            constexpr std::pair<std::string_view, std::optional<double> TrainingMetrics::*>
                kParts[] = {{"compute", &TrainingMetrics::compute_s},
                            {"gather", &TrainingMetrics::gather_s},
                            {"reduce", &TrainingMetrics::reduce_s},
                            {"wait", &TrainingMetrics::wait_s}};
            for (const auto& [part, field] : kParts) {
              if (const auto value = metrics.*field) {
                put(part, *value);
              }
            }
          }),
      labelled_family("acc_rank_memory_bytes", "Memory that the program reports, by category.",
                      "category",
                      [](const TrainingMetrics& metrics, const auto& put) {
                        for (const auto& [category, nbytes] : metrics.memory) {
                          put(category, static_cast<double>(nbytes));
                        }
                      }),
      rank_family("acc_rank_resident_memory_bytes", "Resident memory of the worker.",
                  [](const Rank& rank) { return rank.status.resident_bytes; }),
      rank_family("acc_rank_cpu_cores", "Cores that the worker keeps busy.",
                  [percent](const Rank& rank) { return percent(rank.status.cpu_percent); }),
      rank_family("acc_rank_gpu_utilization_ratio", "Utilization of the worker's GPU.",
                  [percent](const Rank& rank) { return percent(rank.status.gpu_percent); }),
      rank_family("acc_rank_gpu_memory_bytes", "Used memory of the worker's GPU.",
                  [](const Rank& rank) { return rank.status.gpu_bytes; }),
      rank_family(
          "acc_rank_last_report_timestamp_seconds", "Time at which the program reported last.",
          [](const Rank& rank) {
            return rank.last_report ? std::optional(seconds_of(*rank.last_report)) : std::nullopt;
          }),
      labelled_family("acc_rank_value", "Other values that the program reports, by name.", "name",
                      [](const TrainingMetrics& metrics, const auto& put) {
                        for (const auto& [name, value] : metrics.values) {
                          put(name, value);
                        }
                      })};
  return all;
}

/// Writes the families one after the other. A job that is gone, or that has other ranks than at the
/// beginning, has no further series.
class MetricsParts {
 public:
  MetricsParts(const Board& board, const ServerFacts& facts, bool is_open)
      : board_(board), is_open_(is_open) {
    MetricsWriter out(text_, is_open);
    put_server(out, board, facts);
    std::unordered_set<std::string_view> seen;  // series are unique: the newest job of an ID counts
    for (const Board::Job* job : board.jobs()) {
      if (seen.insert(job->id).second) {
        jobs_.emplace_back(job->number, job->num_layouts);
      }
    }
  }

  bool operator()(std::string& out) {
    const std::size_t begin = out.size();
    out += std::exchange(text_, {});
    MetricsWriter writer(out, is_open_);
    if (has_begun_) {
      writer.go_on(families()[family_].name);
    }
    for (int i = 0; i < kEntriesPerPart && out.size() - begin < kPartBytes; ++i) {
      if (!put_next(writer)) {
        writer.finish();
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kEntriesPerPart = 2000;  // most ranks may have no value of a family

  bool put_next(MetricsWriter& out) {
    if (family_ == families().size()) {
      return false;
    }
    const Family& family = families()[family_];
    if (!std::exchange(has_begun_, true)) {
      out.family(family.name, family.help);
    }
    if (job_ == jobs_.size()) {
      ++family_;
      job_ = 0;
      has_begun_ = false;
      return true;
    }
    const auto [number, layout] = jobs_[job_];
    const Board::Job* const job = board_.find(number);
    const bool has_ranks = job != nullptr && family.of_rank && !job->is_over() &&
                           job->num_layouts == layout && rank_ < job->ranks.size();
    if (has_ranks) {
      family.of_rank(out, *job, job->ranks[rank_++]);
      return true;
    }
    if (job != nullptr && family.of_job) {
      family.of_job(out, *job);
    }
    ++job_;
    rank_ = 0;
    return true;
  }

  const Board& board_;
  bool is_open_;
  std::string text_;  // of the server, until the first part
  std::vector<std::pair<Board::JobNumber, std::uint64_t>> jobs_;  // with Board::Job::num_layouts
  std::size_t family_ = 0;
  std::size_t job_ = 0;
  std::size_t rank_ = 0;
  bool has_begun_ = false;  // the head of the family is written
};

}  // namespace

Parts metrics_text(const Board& board, const ServerFacts& facts, bool is_open_metrics) {
  return MetricsParts(board, facts, is_open_metrics);
}

}  // namespace acc::rendezvous::watch
