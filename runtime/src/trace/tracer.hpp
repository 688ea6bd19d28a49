// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "flight/recorder.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::trace {

/// Writes the timeline of one rank to a file that all ranks of a machine share, in the Trace Event
/// Format (a JSON array), which Chrome and Perfetto read. A rank is a process of the trace and a
/// stream is a thread.
///
/// Categories: `compute`, `optimizer`, `checkpoint` and `wait` divide the time of the compute
/// stream without overlap (a nested scope interrupts the one around it); each has a lane, a thread
/// of the trace. `communication` is a collective, in the lane of its stream. The time in `wait` is
/// the cost of communication; communication outside of it is hidden behind computation. `step` is
/// an optimizer step with everything that the program did since the one before.
///
/// Spans are kept as pairs of events and written once both are reached, so tracing does not wait
/// for a GPU.
class Tracer final : public device::Timeline {
 public:
  /// `path`: see create_trace_file, which one rank of each machine calls before. recorder: knows
  /// the unit of a collective that is being issued; may be null.
  Tracer(std::string path, int rank, std::shared_ptr<device::Device> device,
         std::shared_ptr<const flight::Recorder> recorder = nullptr);
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Begins a scope of the compute stream. At `leave`, the scope around it continues.
  void enter(const char* category, std::string name);
  void leave();
  [[nodiscard]] Collective issued(std::string what) override;
  void add(Collective collective, const std::string& stream, device::EventPtr begin,
           device::EventPtr end) override;
  /// Ends an optimizer step as the host sees it, with its number and the memory that the rank
  /// holds, in bytes by category. Writes all spans that are complete.
  void end_step(std::int64_t step, std::span<const std::pair<std::string_view, double>> memory);

 private:
  struct Span {
    std::string name;
    const char* category;
    std::string lane;
    device::EventPtr begin;
    device::EventPtr end;
    std::string collective{};  ///< its id, by which `acclaunch trace merge` finds it on other ranks
  };
  struct Scope {
    const char* category;
    std::string name;
  };
  /// Thread id of a lane in the trace; assigned at first use.
  int thread_of(const std::string& lane);
  /// Ends the current span of the compute stream and begins the next.
  void cut();
  /// Thread of a lane in which a span has room. Times in nanoseconds.
  int free_thread(const std::string& lane, std::int64_t begin, std::int64_t end);
  std::string line(const Span& span);
  /// Returns the line of a span. Times in nanoseconds.
  [[nodiscard]] std::string span_line(const std::string& name, const char* category, int thread,
                                      std::int64_t begin, std::int64_t end,
                                      const std::string& collective) const;
  void flush();

  std::string path_;
  int rank_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const flight::Recorder> recorder_;
  std::uint64_t last_collective_ = 0;  ///< number of the last one that was described
  std::optional<double> step_began_;   ///< microseconds of the host's clock
  std::map<std::string, int> threads_;
  std::map<int, std::int64_t> ends_;  ///< end of the last span written, in ns, by thread
  std::vector<Scope> scopes_;
  device::EventPtr since_;  ///< start of the current span of the innermost scope
  std::deque<Span> spans_;
  bool is_lost_ = false;  ///< the file's disk failed: nothing more is written
  std::string head_;      ///< lines that are not written yet: names, the clock, ends of steps
};

/// Enters a scope of the tracer and leaves it in the destructor. `tracer` may be null.
class Scope {
 public:
  Scope(Tracer* tracer, const char* category, const char* phase, const std::string& name)
      : tracer_(tracer) {
    if (tracer_ != nullptr) {
      tracer_->enter(category, std::string(phase) + " " + name);
    }
  }
  ~Scope() {
    if (tracer_ != nullptr) {
      tracer_->leave();
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Tracer* tracer_;
};

}  // namespace acc::trace
