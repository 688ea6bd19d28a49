// SPDX-License-Identifier: Apache-2.0
#include "watch/api.hpp"

#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace acc::rendezvous::watch {
namespace {

constexpr std::string_view kJobs = "/api/v1/jobs";
// src/page/status.html, one HTML document over the HTTP API without references to other files, as a
// string literal that CMake makes.
constexpr std::string_view kStatusPage =
#include <status_page.inc>
    ;
constexpr std::string_view kEventStream = "text/event-stream";

/// Decodes %XX; empty if the text is malformed.
std::optional<std::string> decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2) {
      return std::nullopt;
    }
    plain += static_cast<char>(byte);
    i += 2;
  }
  return plain;
}

/// The number after `name=` in a query; `otherwise` if it is missing. Empty: not a number.
std::optional<std::uint64_t> number_in(std::string_view query, std::string_view name,
                                       std::uint64_t otherwise) {
  for (const std::string_view part : entries_of(query, '&')) {
    if (part.starts_with(name) && part.substr(name.size()).starts_with('=')) {
      const std::string_view digits = part.substr(name.size() + 1);
      std::uint64_t value = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      return error == std::errc() && end == digits.data() + digits.size() ? std::optional(value)
                                                                          : std::nullopt;
    }
  }
  return otherwise;
}

Answer text_answer(unsigned status, std::string body) {
  return {status, "text/plain; charset=utf-8", std::move(body), {}};
}

Answer json_answer(std::string body) {
  return {200, "application/json", std::move(body), {}};
}

Answer in_parts(std::string content_type, Parts parts) {
  Answer answer{.content_type = std::move(content_type)};
  if (parts(answer.body)) {
    answer.more = std::move(parts);
  }
  return answer;
}

/// The events of a job, or of all jobs if it is null: as a list or as a stream.
Answer events(const Request& request, std::string_view query, const Board& board,
              const Board::Job* job) {
  if (request.accept.find(kEventStream) == std::string_view::npos) {
    return json_answer(events_json(board, job));
  }
  const auto after = request.last_event_id.empty()
                         ? number_in(query, "after", 0)
                         : number_in(fmt::format("id={}", request.last_event_id), "id", 0);
  if (!after) {
    return refusal(400, "after and Last-Event-ID must be the number of an event");
  }
  std::string body = "retry: 2000\n\n";
  for (const Board::Event* event : events_after(board, job, *after)) {
    body += stream_entry(*event);
  }
  if (job != nullptr) {
    body += stream_entry(*job);
  }
  return {200, std::string(kEventStream), std::move(body),
          Stream{job != nullptr ? std::optional(job->number) : std::nullopt}};
}

FindJob finder_of(const Board& board, const Board::Job& job) {
  return [&board, number = job.number] { return board.find(number); };
}

Answer ranks(std::string_view query, const Board& board, const Board::Job& job) {
  const auto from = number_in(query, "from", 0);
  const auto limit = number_in(query, "limit", SIZE_MAX);
  if (!from || !limit) {
    return refusal(400, "from and limit must be numbers");
  }
  return in_parts("application/json", ranks_json(finder_of(board, job), *from, *limit));
}

Answer of_job(const Request& request, std::string_view path, std::string_view query,
              const Board& board) {
  const std::string_view id = path.substr(0, path.find('/'));
  const std::string_view what =
      path.size() == id.size() ? std::string_view() : path.substr(id.size() + 1);
  const auto name = decoded(id);
  if (!name) {
    return refusal(400, "the job's ID is not percent-encoded correctly");
  }
  const Board::Job* const job = board.find(*name);
  if (job == nullptr) {
    return refusal(404, fmt::format("there is no job \"{}\"", printable(*name)));
  }
  if (what.empty()) {
    return json_answer(job_json(*job) + "\n");
  }
  if (what == "ranks") {
    return ranks(query, board, *job);
  }
  if (what == "rounds") {
    return in_parts("application/json", rounds_json(finder_of(board, *job)));
  }
  if (what == "events") {
    return events(request, query, board, job);
  }
  if (what == "history") {
    return json_answer(history_json(*job));
  }
  if (what == "report") {
    return job->report.empty() ? refusal(404, "no round of this job has failed")
                               : json_answer(job->report);
  }
  return refusal(404, "expected ranks, rounds, report, events or history after the job's ID");
}

Answer metrics(const Request& request, const Board& board, const ServerFacts& facts) {
  const bool is_open =
      request.accept.find("application/openmetrics-text") != std::string_view::npos;
  return in_parts(is_open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                          : "text/plain; version=0.0.4; charset=utf-8",
                  metrics_text(board, facts, is_open));
}

}  // namespace

Answer refusal(unsigned status, std::string_view message) {
  return {status, "application/json", error_json(status, message), {}};
}

bool is_probe(const Request& request) {
  const std::string_view path = request.target.substr(0, request.target.find('?'));
  return path == "/healthz" || path == "/readyz";
}

Answer answer(const Request& request, const Board& board, const ServerFacts& facts,
              Board::Time now) {
  const std::string_view path = request.target.substr(0, request.target.find('?'));
  const std::string_view query =
      path.size() == request.target.size() ? "" : request.target.substr(path.size() + 1);
  if (request.method != "GET" && request.method != "HEAD") {
    return refusal(405, "only GET and HEAD are possible");
  }
  if (path == "/") {
    return {200, "text/html; charset=utf-8", std::string(kStatusPage), {}};
  }
  if (path == "/healthz") {
    return text_answer(200, "ok\n");
  }
  if (path == "/readyz") {
    if (facts.is_stopping) {
      return text_answer(503, "shutting down\n");
    }
    return facts.leads ? text_answer(200, "ready\n") : text_answer(503, "standing by\n");
  }
  if (path == "/metrics") {
    return metrics(request, board, facts);
  }
  if (path == kJobs) {
    return in_parts("application/json", jobs_json(board, now));
  }
  if (path == "/api/v1/events") {
    return events(request, query, board, nullptr);
  }
  if (path.starts_with(kJobs) && path.substr(kJobs.size()).starts_with('/')) {
    return of_job(request, path.substr(kJobs.size() + 1), query, board);
  }
  return refusal(404, "there is no such path; docs/api.md has a list");
}

std::string stream_entry(const Board::Job& job) {
  return fmt::format("event: job\ndata: {}\n\n", job_json(job));
}

std::string stream_entry(const Board::Event& event) {
  return fmt::format("event: event\nid: {}\ndata: {}\n\n", event.number, event_json(event));
}

}  // namespace acc::rendezvous::watch
