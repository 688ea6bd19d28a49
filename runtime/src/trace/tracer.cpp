// SPDX-License-Identifier: Apache-2.0
#include "trace/tracer.hpp"

#include "acc/base/json.hpp"
#include "acc/base/log.hpp"
#include "acc/base/trace_file.hpp"
#include "device/host_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace acc::trace {
namespace {

// One event per line. "M" events name the process (rank) and its threads (streams); "X" events are
// complete spans with begin (`ts`) and duration (`dur`) in microseconds; "C" events are values.
// A rank's lanes are threads in the trace, in this order: steps, the categories of the host's time,
// then the streams of the collectives.
constexpr std::array kLanes = {"step", "compute", "optimizer", "checkpoint",
                               "wait", "gather",  "reduce"};

}  // namespace

Tracer::Tracer(std::string path, int rank, std::shared_ptr<device::Device> device,
               std::shared_ptr<const flight::Recorder> recorder)
    : path_(std::move(path)),
      rank_(rank),
      device_(std::move(device)),
      recorder_(std::move(recorder)) {
  head_ = fmt::format(
      "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}},\n", rank_,
      json_quoted(fmt::format("rank {} on {}", rank_, device_->describe())));
  head_ += trace_clock_event(rank_);
  for (const char* const lane : kLanes) {
    thread_of(lane);
  }
  device_->time_events(true);
  device_->set_timeline(this);
}

Tracer::~Tracer() {
  device_->set_timeline(nullptr);
  try {
    device_->synchronize();
    flush();
  } catch (const std::exception&) {  // the device failed; spans written earlier stay in the file
  }
}

int Tracer::thread_of(const std::string& lane) {
  const auto [found, added] = threads_.try_emplace(lane, static_cast<int>(threads_.size()));
  if (added) {
    head_ += fmt::format(
        "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"args\":{{\"name\":{2}}}}"
        "},\n"
        "{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":{0},\"tid\":{1},"
        "\"args\":{{\"sort_index\":{1}}}}},\n",
        rank_, found->second, json_quoted(lane));
  }
  return found->second;
}

// A scope is written as one span per uninterrupted part: entering a nested scope ends the span of
// the outer one, and leaving it begins the next.
void Tracer::cut() {
  device::EventPtr now = device_->record(device_->compute());
  if (!scopes_.empty()) {
    const Scope& scope = scopes_.back();
    spans_.push_back({scope.name, scope.category, scope.category, since_, now});
  }
  since_ = std::move(now);
}

void Tracer::enter(const char* category, std::string name) {
  if (!step_began_) {
    step_began_ = device::host_microseconds();
  }
  cut();
  scopes_.push_back({category, std::move(name)});
}

void Tracer::leave() {
  cut();
  scopes_.pop_back();
}

// The group that records a collective has done so before it issues it.
device::Timeline::Collective Tracer::issued(std::string what) {
  Collective collective{std::move(what), {}};
  if (recorder_ == nullptr || recorder_->last_call().number == 0) {
    return collective;
  }
  const flight::Recorder::Call& call = recorder_->last_call();
  if (call.unit != nullptr && !call.unit->empty()) {
    collective.name += " of " + *call.unit;
  }
  if (*call.phase != '\0') {
    collective.name += std::string(", ") + call.phase;
  }
  // On a GPU a collective may be issued in several parts, of which the first has the id.
  if (call.number != std::exchange(last_collective_, call.number)) {
    collective.id = recorder_->id_of(call);
  }
  return collective;
}

void Tracer::add(Collective collective, const std::string& stream, device::EventPtr begin,
                 device::EventPtr end) {
  spans_.push_back({std::move(collective.name), "communication", stream, std::move(begin),
                    std::move(end), std::move(collective.id)});
}

// The spans of a thread must not overlap, but collectives do: one may be issued before another is
// waited for. A span that begins before the last one of its lane has ended is put into a further
// lane, "gather 2".
int Tracer::free_thread(const std::string& lane, std::int64_t begin, std::int64_t end) {
  for (int i = 1;; ++i) {
    const int thread = thread_of(i == 1 ? lane : fmt::format("{} {}", lane, i));
    if (std::int64_t& last = ends_[thread]; last <= begin) {
      last = end;
      return thread;
    }
  }
}

// Both ends are rounded to nanoseconds, so that spans which follow each other do not overlap.
std::string Tracer::line(const Span& span) {
  const auto begin = std::llround(span.begin->microseconds() * 1000.0);
  const auto end = std::max(begin, std::llround(span.end->microseconds() * 1000.0));
  return span_line(span.name, span.category, free_thread(span.lane, begin, end), begin, end,
                   span.collective);
}

std::string Tracer::span_line(const std::string& name, const char* category, int thread,
                              std::int64_t begin, std::int64_t end,
                              const std::string& collective) const {
  return fmt::format(
      "{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},"
      "\"dur\":{}.{:03}{}}},\n",
      json_quoted(name), category, rank_, thread, begin / 1000, begin % 1000, (end - begin) / 1000,
      (end - begin) % 1000,
      collective.empty() ? ""
                         : fmt::format(",\"args\":{{\"collective\":{}}}", json_quoted(collective)));
}

void Tracer::end_step(std::int64_t step,
                      std::span<const std::pair<std::string_view, double>> memory) {
  const double now = device::host_microseconds();
  const auto begin = std::llround(step_began_.value_or(now) * 1000.0);
  const auto end = std::max(begin, std::llround(now * 1000.0));
  step_began_ = now;
  head_ += span_line(fmt::format("step {}", step), "step", thread_of("step"), begin, end, "");
  std::string values;
  for (const auto& [name, nbytes] : memory) {  // memory.parameters, …
    values += fmt::format("{}{}:{:.0f}", values.empty() ? "" : ",",
                          json_quoted(std::string(name.substr(name.find('.') + 1))), nbytes);
  }
  head_ += fmt::format(
      "{{\"name\":\"memory (bytes)\",\"ph\":\"C\",\"pid\":{},\"ts\":{:.3f},\"args\":{{{}}}}},\n",
      rank_, now, values);
  flush();
}

// Spans whose end is not reached yet are kept for the next flush, so that a flush never waits for
// the GPU.
void Tracer::flush() {
  std::string text;
  std::deque<Span> unfinished;
  for (Span& span : spans_) {
    if (span.end->done()) {
      text += line(span);
    } else {
      unfinished.push_back(std::move(span));
    }
  }
  spans_ = std::move(unfinished);
  text = std::exchange(head_, {}) + text;  // with the names of the lanes
  if (text.empty() || is_lost_) {
    return;
  }
  try {
    append_trace_events(path_, std::move(text));
  } catch (const Error& error) {  // a disk that is full or gone does not end the training
    is_lost_ = true;
    logger(Component::runtime).warn("{}; it gets no further events of this rank", error.what());
  }
}

}  // namespace acc::trace
