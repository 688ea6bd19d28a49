// SPDX-License-Identifier: Apache-2.0
#include "trace/tracer.hpp"

#include "acc/base/json.hpp"
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
// complete spans with begin (`ts`) and duration (`dur`) in microseconds; "i" events mark the end of
// a step.
// A rank's lanes are threads in the trace, in this order: the categories of the host's time, then
// the streams of the collectives.
constexpr std::array kLanes = {"compute", "optimizer", "checkpoint", "wait", "gather", "reduce"};

}  // namespace

Tracer::Tracer(std::string path, int rank, std::shared_ptr<device::Device> device)
    : path_(std::move(path)), rank_(rank), device_(std::move(device)) {
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
  cut();
  scopes_.push_back({category, std::move(name)});
}

void Tracer::leave() {
  cut();
  scopes_.pop_back();
}

void Tracer::add(std::string name, const std::string& stream, device::EventPtr begin,
                 device::EventPtr end) {
  spans_.push_back({std::move(name), "communication", stream, std::move(begin), std::move(end)});
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
  return fmt::format(
      "{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03},"
      "\"dur\":{}.{:03}}},\n",
      json_quoted(span.name), span.category, rank_, free_thread(span.lane, begin, end),
      begin / 1000, begin % 1000, (end - begin) / 1000, (end - begin) % 1000);
}

void Tracer::end_step() {
  head_ += fmt::format(
      "{{\"name\":\"step\",\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0,\"ts\":{:.3f}}},\n", rank_,
      device::host_microseconds());
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
  if (!text.empty()) {
    append_trace_events(path_, std::move(text));
  }
}

}  // namespace acc::trace
