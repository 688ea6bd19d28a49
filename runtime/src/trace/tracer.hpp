#pragma once

#include "device/device.hpp"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace acc::trace {

/// The timeline of one rank, appended to a file that all ranks of a machine share, in the trace
/// event format that Chrome and Perfetto read (a JSON array).
/// A rank is a process there, a stream a thread. Categories: `compute` and `wait` divide the
/// compute stream without overlap (a nested scope interrupts the one around it), `communication` is
/// a collective on its own stream. The time that `wait` covers is what communication costs; the
/// rest of it is hidden.
class Tracer final : public device::Timeline {
 public:
  /// Begins an empty file. One rank of a machine does it, before the others open theirs. Throws
  /// Error(config) naming a file that cannot be written.
  static void create_file(const std::string& path);

  Tracer(std::string path, int rank, std::shared_ptr<device::Device> device);
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// What the compute stream does from now on, until `leave`; then again what it did before.
  void enter(const char* category, std::string name);
  void leave();
  void add(std::string name, const std::string& stream, device::EventPtr begin,
           device::EventPtr end) override;
  /// Writes what is over.
  void flush();

 private:
  struct Span {
    std::string name;
    const char* category;
    int thread;
    device::EventPtr begin;
    device::EventPtr end;
  };
  struct Scope {
    const char* category;
    std::string name;
  };
  int thread_of(const std::string& stream);
  void cut();
  [[nodiscard]] std::string line(const Span& span) const;

  std::string path_;
  int rank_;
  std::shared_ptr<device::Device> device_;
  std::map<std::string, int> threads_;
  std::vector<Scope> scopes_;
  device::EventPtr since_;  ///< when the innermost scope began or went on
  std::deque<Span> spans_;
  std::string head_;  ///< names of process and threads that are not written yet
};

/// A scope of a tracer that may be absent.
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
