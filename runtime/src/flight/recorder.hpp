#pragma once

#include "acc/base/error.hpp"
#include "acc/base/flight_record.hpp"
#include "acc/base/unique_fd.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acc::flight {

/// What this rank is doing and what its last collectives were for: said in the messages of those
/// that fail, and left in a file for the launcher. Writing is a few stores into mapped memory,
/// which the kernel keeps however this process ends. One thread writes.
class Recorder {
 public:
  /// `path` empty, or a file that cannot be had or that another recorder is writing: the record
  /// stays in this process.
  Recorder(const std::string& path, int rank);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Its index; groups beyond `file::kGroups` share the last one. `ranks`: evenly spaced.
  int add_group(std::string_view name, const std::vector<int>& ranks);

  /// Where the program is from now on, until the same is left. Units' scopes need not be nested.
  void enter(const char* phase, std::string_view unit);
  void leave(const char* phase, std::string_view unit);

  /// One collective, as `call` gives it.
  struct Call {
    std::uint64_t number = 0;
    std::uint32_t sequence = 0;
    int group = 0;
    const char* phase = "";
    const std::string* unit = nullptr;  ///< lives as long as the recorder
  };
  Call call(int group, const char* kind, std::size_t nbytes);
  void waits(const Call& call) noexcept;
  void ended(const Call& call, State state) noexcept;
  /// The program lets go of its model without an error: what fails from here on, until the next
  /// call, does not fail because of a peer.
  void leaves() noexcept;
  /// It failed with `error`; the record keeps the first one.
  void failed(const Call& call, const Error& error) noexcept;

 private:
  struct Scope {
    const char* phase;
    const std::string* unit;
  };
  void* map(const std::string& path);
  void show_place() noexcept;
  [[nodiscard]] file::FileSlot* slot_of(const Call& call) const noexcept;

  UniqueFd file_;
  void* memory_;
  file::FileHead* head_;
  file::FileFailure* failure_;
  file::FileGroup* groups_;
  file::FileSlot* slots_;
  std::uint64_t number_ = 0;
  std::set<std::string, std::less<>> names_;
  std::vector<Scope> scopes_;
};

/// Brackets what belongs to a unit; the recorder may be absent.
class Scope {
 public:
  Scope(Recorder* recorder, const char* phase, std::string_view unit)
      : recorder_(recorder), phase_(phase), unit_(unit) {
    if (recorder_ != nullptr) {
      recorder_->enter(phase_, unit_);
    }
  }
  ~Scope() {
    if (recorder_ != nullptr) {
      recorder_->leave(phase_, unit_);
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Recorder* recorder_;
  const char* phase_;
  std::string_view unit_;
};

}  // namespace acc::flight
