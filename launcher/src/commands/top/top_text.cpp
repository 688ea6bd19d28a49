// SPDX-License-Identifier: Apache-2.0
#include "commands/top/top_text.hpp"

#include "acc/base/text.hpp"
#include "report/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kNothing = "-";
/// Place of a missing value in an ascending order.
constexpr double kNever = std::numeric_limits<double>::infinity();

std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>())
                                                     : std::nullopt;
}

std::string text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

std::string count_text(std::optional<double> value) {
  return value ? fmt::format("{:.0f}", *value) : std::string(kNothing);
}

std::string short_text(std::optional<double> value) {
  return value ? fmt::format("{:.4g}", *value) : std::string(kNothing);
}

/// Formats a rate: "51.2k", "1.3M".
std::string rate_text(std::optional<double> value) {
  constexpr std::array<std::pair<double, char>, 3> kUnits = {
      std::pair(1e9, 'G'), std::pair(1e6, 'M'), std::pair(1e4, 'k')};
  if (!value) {
    return std::string(kNothing);
  }
  for (const auto& [least, unit] : kUnits) {
    if (*value >= least) {
      return fmt::format("{:.3g}{}", *value / (unit == 'k' ? 1e3 : least), unit);
    }
  }
  return fmt::format("{:.4g}", *value);
}

std::string span_text(double seconds) {
  using std::chrono::microseconds;
  // A server may send any number.
  seconds = std::isfinite(seconds) ? std::clamp(seconds, 0.0, 1e9) : 0.0;
  return report::time_span(seconds < 10.0
                               ? microseconds(static_cast<std::int64_t>(seconds * 1e6))
                               : microseconds(std::chrono::seconds(static_cast<int>(seconds))));
}

std::string ago_text(std::optional<double> time, double now) {
  if (!time) {
    return std::string(kNothing);
  }
  return now - *time < 2.0 ? "now" : span_text(now - *time) + " ago";
}

std::string percent_text(std::optional<double> value) {
  return value ? fmt::format("{:.0f}%", *value) : std::string(kNothing);
}

std::string bytes_text(std::optional<double> value) {
  return value && *value < 9e18 ? report::binary_size(static_cast<std::int64_t>(*value))
                                : std::string(kNothing);
}

/// The share of the last step in which a rank waited for others, in percent.
std::optional<double> wait_share(const Json& rank) {
  const auto step = number(rank, "step_s");
  if (!step || *step <= 0.0) {
    return std::nullopt;
  }
  double waits = 0.0;
  for (const char* part : {"gather_s", "reduce_s", "wait_s"}) {
    waits += number(rank, part).value_or(0.0);
  }
  return 100.0 * waits / *step;
}

std::string loss_text(const Json& rank) {
  const auto found = rank.find("not_finite");
  const bool is_finite = found == rank.end() || !found->is_array() ||
                         std::ranges::find(*found, Json("loss")) == found->end();
  return is_finite ? short_text(number(rank, "loss")) : "NaN";
}

std::optional<double> memory_of(const Json& rank) {
  const auto gpu = rank.find("gpu");
  const auto on_gpu =
      gpu != rank.end() && gpu->is_object() ? number(*gpu, "memory_bytes") : std::nullopt;
  return on_gpu ? on_gpu : number(rank, "resident_bytes");
}

std::optional<double> gpu_use(const Json& rank) {
  const auto gpu = rank.find("gpu");
  return gpu != rank.end() && gpu->is_object() ? number(*gpu, "utilization_percent") : std::nullopt;
}

/// A column of a table. Columns of the highest `level` are left out first.
struct Column {
  std::string_view name;
  bool right;  ///< numbers
  int level;
  std::function<std::string(const Json& row)> value;
  bool shortens = false;  ///< a name that may be cut; at most one column of a table
};

/// Columns that are left of a name that is cut, if it has so many.
constexpr std::size_t kLeastName = 16;

std::string shortened(const std::string& cell, std::size_t width) {
  if (columns_of(cell) <= width) {
    return cell;
  }
  std::size_t end = 0;
  for (std::size_t count = 0; count < width; ++end) {  // to the begin of the character that is cut
    count += columns_of(cell.substr(end, 1));
  }
  return cell.substr(0, end - 1) + "…";
}

std::string styled(const std::string& text, std::string_view code, const TopLook& look) {
  return look.styled && !code.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

/// Returns the SGR code of a cell that is a state, or a loss that is not finite.
std::string_view colour_of(const std::string& cell) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kCellColours = {
      std::pair("running", "32"), std::pair("finished", "32"),   std::pair("starting", "33"),
      std::pair("waiting", "33"), std::pair("restarting", "33"), std::pair("ending", "33"),
      std::pair("failed", "31"),  std::pair("lost", "31"),       std::pair("NaN", "31"),
      std::pair("stopped", "36")};
  const auto* const found = std::ranges::find(
      kCellColours, cell, [](const auto& each) { return std::string(each.first); });
  return found == kCellColours.end() ? "" : found->second;
}

std::string cell_text(const std::string& cell, std::size_t width, const Column& column,
                      bool is_marked, const TopLook& look) {
  const bool has_colour = look.coloured && (column.name == "STATE" || column.name == "LOSS");
  const std::string_view colour = has_colour ? colour_of(cell) : "";
  const std::string shown =
      styled(shortened(cell, width),
             is_marked ? fmt::format("1{}{}", colour.empty() ? "" : ";", colour) : colour, look);
  const std::string blanks(width - std::min(width, columns_of(cell)), ' ');
  return column.right ? blanks + shown : shown + blanks;
}

/// Adds a table with a head. `marked`: the row that is shown in bold.
void add_table(std::vector<std::string>& lines, std::vector<Column> columns,
               std::span<const Json* const> rows, const TopLook& look, const Json* marked) {
  std::vector<std::vector<std::string>> cells;
  std::vector<std::size_t> widths;
  std::size_t wish = 0;  // width of the whole names
  const auto lay_out = [&] {
    cells.assign(rows.size(), {});
    widths.assign(columns.size(), 0);
    std::size_t total = 0;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths[c] = columns[c].name.size();
      for (std::size_t r = 0; r < rows.size(); ++r) {
        cells[r].push_back(columns[c].value(*rows[r]));
        widths[c] = std::max(widths[c], columns_of(cells[r].back()));
      }
      if (columns[c].shortens && look.width != 0) {
        wish = std::exchange(widths[c], std::min(widths[c], kLeastName));
      }
      total += widths[c] + (c == 0 ? 0 : 2);
    }
    return total;
  };
  std::size_t total = 0;
  while ((total = lay_out()) > look.width && look.width != 0) {
    const auto least = std::ranges::max_element(columns, {}, &Column::level);
    if (least->level == 0) {
      break;
    }
    columns.erase(least);
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].shortens && look.width > total) {  // what is left belongs to the names
      widths[c] = std::min(wish, widths[c] + look.width - total);
    }
  }
  const auto line_of = [&](const auto& cell_of, bool is_marked) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      line += (c == 0 ? "" : "  ") + cell_text(cell_of(c), widths[c], columns[c], is_marked, look);
    }
    return line.substr(0, line.find_last_not_of(' ') + 1);
  };
  lines.push_back(styled(
      line_of([&](std::size_t c) { return std::string(columns[c].name); }, false), "2", look));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    lines.push_back(line_of([&](std::size_t c) { return cells[r][c]; }, rows[r] == marked));
  }
}

/// Returns the number of machines whose workers run.
std::ptrdiff_t num_running(const Json& job) {
  const auto machines = job.find("machines");
  return machines == job.end() || !machines->is_array()
             ? 0
             : std::ranges::count_if(*machines, [](const Json& machine) {
                 return machine.is_object() && text(machine, "state") == "running";
               });
}

std::vector<Column> job_columns(double now) {
  const auto of = [](const char* key, std::string (*words)(std::optional<double>)) {
    return [key, words](const Json& job) { return words(number(job, key)); };
  };
  return {
      {"JOB", false, 0, [](const Json& job) { return text(job, "id"); }, true},
      {"STATE", false, 0, [](const Json& job) { return text(job, "state"); }},
      {"MACHINES", true, 3,
       [](const Json& job) {
         return fmt::format("{}/{}", num_running(job), count_text(number(job, "num_machines")));
       }},
      {"RANKS", true, 2, of("world_size", count_text)},
      {"STEP", true, 0, of("step", count_text)},
      {"LOSS", true, 0, of("loss", short_text)},
      {"TOKENS/S", true, 1, of("tokens_per_s", rate_text)},
      {"SLOWEST", true, 2, of("slowest_rank", count_text)},
      {"RESTARTS", true, 4,
       [](const Json& job) {
         return count_text(number(job, "restarts")) + "/" + count_text(number(job, "max_restarts"));
       }},
      {"HEARTBEAT", false, 5,
       [now](const Json& job) { return ago_text(number(job, "last_heartbeat"), now); }},
      {"FOR", false, 6,
       [now](const Json& job) {
         const auto begin = number(job, "created_at");
         return begin ? span_text(number(job, "ended_at").value_or(now) - *begin)
                      : std::string(kNothing);
       }},
  };
}

std::vector<Column> rank_columns(double now) {
  const auto of = [](const char* key, std::string (*words)(std::optional<double>)) {
    return [key, words](const Json& rank) { return words(number(rank, key)); };
  };
  return {
      {"RANK", true, 0, of("rank", count_text)},
      {"HOST", false, 3, [](const Json& rank) { return text(rank, "host"); }, true},
      {"PID", true, 8, of("pid", count_text)},
      {"STATE", false, 0, [](const Json& rank) { return text(rank, "state"); }},
      {"STEP", true, 0, of("step", count_text)},
      {"LOSS", true, 1, loss_text},
      {"TOKENS/S", true, 2, of("tokens_per_s", rate_text)},
      {"STEP TIME", true, 6,
       [](const Json& rank) {
         const auto step = number(rank, "step_s");
         return step ? span_text(*step) : std::string(kNothing);
       }},
      {"WAITS", true, 4, [](const Json& rank) { return percent_text(wait_share(rank)); }},
      {"MEMORY", true, 2, [](const Json& rank) { return bytes_text(memory_of(rank)); }},
      {"CPU", true, 1, of("cpu_percent", percent_text)},
      {"GPU", true, 7, [](const Json& rank) { return percent_text(gpu_use(rank)); }},
      {"HEARTBEAT", false, 5,
       [now](const Json& rank) { return ago_text(number(rank, "last_heartbeat"), now); }},
  };
}

/// Returns the ranks by number, or first the slowest one, then those that have done the fewest
/// steps and wait least.
std::vector<const Json*> ordered_ranks(const WatchedJob& job, bool slowest_first) {
  std::vector<const Json*> ranks;
  for (const Json& rank : job.ranks) {
    if (rank.is_object()) {
      ranks.push_back(&rank);
    }
  }
  if (slowest_first) {
    const auto slowest = number(job.job, "slowest_rank");
    std::ranges::stable_sort(ranks, {}, [&](const Json* rank) {
      return std::tuple(!slowest || number(*rank, "rank") != slowest,
                        number(*rank, "step").value_or(kNever), wait_share(*rank).value_or(kNever));
    });
  }
  return ranks;
}

void add_ranks(std::vector<std::string>& lines, const WatchedJob& job, const TopLook& look) {
  std::vector<const Json*> ranks = ordered_ranks(job, look.slowest_first);
  const std::size_t all = ranks.size();
  if (look.max_ranks != 0 && all > look.max_ranks) {
    ranks.resize(look.max_ranks);
  }
  const auto slowest = number(job.job, "slowest_rank");
  const auto found = std::ranges::find_if(
      ranks, [&](const Json* rank) { return slowest && number(*rank, "rank") == slowest; });
  add_table(lines, rank_columns(look.now), ranks, look, found == ranks.end() ? nullptr : *found);
  if (ranks.size() < all) {
    lines.push_back(fmt::format("and {} more ranks", all - ranks.size()));
  }
}

}  // namespace

// Counts the bytes that begin a character. Characters of two columns are rare in names of hosts.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::vector<std::string> top_lines(std::span<const WatchedJob> jobs, const TopLook& look) {
  std::vector<std::string> lines;
  std::vector<const Json*> rows;
  for (const WatchedJob& job : jobs) {
    rows.push_back(&job.job);
  }
  add_table(lines, job_columns(look.now), rows, look, nullptr);
  for (const WatchedJob& job : jobs) {
    const std::string reason = text(job.job, "reason");
    const std::string waits = text(job.job, "waiting_for");
    if (job.ranks.empty() && reason.empty() && waits.empty()) {
      continue;
    }
    lines.emplace_back();
    lines.push_back(styled("job " + text(job.job, "id"), "1", look));
    for (const std::string& line : {waits.empty() ? "" : "waits: " + waits, reason}) {
      if (!line.empty()) {
        lines.push_back(line);
      }
    }
    if (!job.ranks.empty()) {
      add_ranks(lines, job, look);
    }
  }
  return lines;
}

}  // namespace acc::launcher::commands
