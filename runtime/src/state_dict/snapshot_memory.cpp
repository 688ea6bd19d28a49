// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_memory.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "model/buffers.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/device_bytes.hpp"
#include "state_dict/saved_arrays.hpp"
#include "state_dict/stored_model.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>
#include <variant>

// The file has a half at 0 and one at 4 TiB; it is sparse, so only what was written takes memory. A
// half is a head of one page, the meta data (`Packer`), and the values: weights and moments of each
// flat parameter, then the buffers, model by model. A half is written in this order: a head that is
// not complete, meta data and values, the complete head. A kill at any point leaves a half that is
// whole or that says it is not.
namespace acc::state_dict {
namespace {

constexpr std::uint64_t kHalf = std::uint64_t{1} << 42;
constexpr std::uint64_t kHeadBytes = 4096;
constexpr std::uint64_t kMagic = 0x31'50'41'4e'53'43'43'41;  // "ACCSNAP1"
constexpr std::size_t kSnapshotTile = std::size_t{1}
                                      << 18;  ///< stays in the cache between sum and write

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Writes values one after the other.
class Packer {
 public:
  template <typename T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(const std::string& value) {
    number(value.size());
    text_ += value;
  }
  void values(const ProgramState& state) {
    number(state.size());
    for (const auto& [name, value] : state) {
      text(name);
      number(value.index());
      if (const auto* const integer = std::get_if<std::int64_t>(&value)) {
        number(*integer);
      } else if (const auto* const real = std::get_if<double>(&value)) {
        number(*real);
      } else {
        text(std::get<std::string>(value));
      }
    }
  }
  void figures(const std::map<std::string, double>& all) {
    number(all.size());
    for (const auto& [name, value] : all) {
      text(name);
      number(value);
    }
  }
  [[nodiscard]] const std::string& packed() const { return text_; }

 private:
  std::string text_;
};

/// Reads what a Packer of this library wrote; its checksum has been checked.
class Unpacker {
 public:
  explicit Unpacker(std::string packed) : text_(std::move(packed)) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = number<std::size_t>();
    return {take(size), size};
  }
  ProgramState values() {
    ProgramState state;
    for (auto left = number<std::size_t>(); left > 0; --left) {
      std::string name = text();
      switch (number<std::size_t>()) {
        case 0: state[std::move(name)] = number<std::int64_t>(); break;
        case 1: state[std::move(name)] = number<double>(); break;
        default: state[std::move(name)] = text(); break;
      }
    }
    return state;
  }
  std::map<std::string, double> figures() {
    std::map<std::string, double> all;
    for (auto left = number<std::size_t>(); left > 0; --left) {
      std::string name = text();
      all[std::move(name)] = number<double>();
    }
    return all;
  }

 private:
  const char* take(std::size_t nbytes) {
    if (text_.size() - at_ < nbytes) {
      throw Error(Errc::internal, "a snapshot in memory ends before its last value");
    }
    return text_.data() + std::exchange(at_, at_ + nbytes);
  }

  std::string text_;
  std::size_t at_ = 0;
};

/// The arrays of a model in the order of a snapshot.
std::vector<FlatArray> arrays_of(const Part& part) {
  auto arrays = weight_arrays(*part.model);
  std::ranges::move(moment_arrays(*part.model, *part.optimizer), std::back_inserter(arrays));
  return arrays;
}

/// Everything that must be the same in the run that restores a snapshot.
std::string layout_of(std::span<const Part> parts, const std::string& what) {
  const auto& groups = parts.front().model->context().groups;
  std::string text =
      fmt::format("{}\nrank {} of {}\n", what, groups.world->rank(), groups.world->size());
  for (const Part& part : parts) {
    text += fmt::format("model with {}\n", part.optimizer->name());
    for (const FlatArray& array : arrays_of(part)) {
      const auto owned = array.flat->owned();
      text += fmt::format("{} {} {} at {}:", array.kind, to_string(array.dtype), owned.numel,
                          owned.offset);
      for (const auto& record : array.flat->parameters()) {
        text += " " + record.name;
      }
      text += "\n";
    }
    for (const auto* const buffer : part.model->buffers()) {
      text +=
          fmt::format("buffer {} {} {}\n", buffer->name, to_string(buffer->dtype), buffer->numel);
    }
  }
  return text;
}

std::string packed_state(std::span<const Part> parts, const SavedState& state,
                         const std::string& what) {
  Packer packer;
  packer.text(layout_of(parts, what));
  for (const Part& part : parts) {
    packer.number(part.optimizer->steps);
    packer.number(part.optimizer->skipped_steps);
    packer.number(part.model->seed());
    packer.figures(part.optimizer->scaler() ? part.optimizer->scaler()->state()
                                            : std::map<std::string, double>());
  }
  packer.values(state.program);
  packer.values(state.of_rank);
  return packer.packed();
}

}  // namespace

struct SnapshotMemory::Head {
  std::uint64_t magic = 0;
  std::uint64_t number = 0;  ///< of the snapshot, from 1
  std::int64_t step = 0;
  std::uint64_t meta_nbytes = 0;
  std::uint64_t values_nbytes = 0;
  std::uint32_t crc32 = 0;  ///< of meta data and values
  std::uint32_t complete = 0;
};

SnapshotMemory::SnapshotMemory(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (!file_) {
    throw Error(Errc::config, fmt::format("cannot open the memory for snapshots, {}: {}", path,
                                          std::generic_category().message(errno)));
  }
}

void SnapshotMemory::keep(std::span<const Part> parts, const SavedState& state,
                          const std::string& what) {
  const Head first = head_of(0);
  const Head second = head_of(1);
  // The older one, or one that is not complete.
  const int half =
      first.complete == 0 || (second.complete != 0 && first.number < second.number) ? 0 : 1;
  const std::string meta = packed_state(parts, state, what);
  Head head{.magic = kMagic,
            .number = std::max(first.number, second.number) + 1,
            .step = parts.front().optimizer->steps,
            .meta_nbytes = meta.size()};
  const std::uint64_t begin = static_cast<std::uint64_t>(half) * kHalf;
  write(begin, bytes_of(head));
  std::uint64_t at = begin + kHeadBytes;
  const auto add = [&](std::span<const std::byte> bytes) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(kSnapshotTile, bytes.size()))) {
      const auto tile = bytes.first(std::min(kSnapshotTile, bytes.size()));
      head.crc32 = crc32(head.crc32, tile);
      write(at, tile);
      at += tile.size();
    }
  };
  add(std::as_bytes(std::span(meta)));
  for (const Part& part : parts) {
    part.model->context().await_compute();
    for (const FlatArray& array : arrays_of(part)) {
      hold(*part.model, array)->read_all(add);
    }
    for (const auto* const buffer : part.model->buffers()) {
      hold(*part.model, *buffer)->read_all(add);
    }
  }
  head.values_nbytes = at - begin - kHeadBytes - head.meta_nbytes;
  head.complete = 1;
  write(begin, bytes_of(head));
}

std::array<std::optional<std::int64_t>, 2> SnapshotMemory::steps(std::span<const Part> parts,
                                                                 const std::string& what) const {
  Halves found;
  for (int half = 0; half < 2; ++half) {
    const Head head = head_of(half);
    if (is_whole(half, head) && Unpacker(meta_of(half, head)).text() == layout_of(parts, what)) {
      found[static_cast<std::size_t>(half)] = head.step;
    }
  }
  return found;
}

SavedState SnapshotMemory::restore(std::span<const Part> parts, std::int64_t step,
                                   const std::string& what) const {
  const auto& groups = parts.front().model->context().groups;
  for (const Part& part : parts) {
    await_readers(*part.model);
  }
  groups.world->barrier()->wait();
  SavedState state;
  Attempt attempt;
  attempt([&] {
    const auto found = steps(parts, what);
    const int half = found[0] == step ? 0 : 1;
    if (found[static_cast<std::size_t>(half)] != step) {
      throw Error(Errc::internal, fmt::format("no snapshot of step {} in memory", step));
    }
    const Head head = head_of(half);
    Unpacker meta(meta_of(half, head));
    meta.text();
    std::uint64_t at = static_cast<std::uint64_t>(half) * kHalf + kHeadBytes + head.meta_nbytes;
    for (const Part& part : parts) {
      part.optimizer->steps = meta.number<std::int64_t>();
      part.optimizer->skipped_steps = meta.number<std::int64_t>();
      part.model->seed_noise(meta.number<std::uint64_t>());
      const auto scaler = meta.figures();
      if (part.optimizer->scaler()) {
        part.optimizer->scaler()->restore(scaler);
      }
      for (const FlatArray& array : arrays_of(part)) {
        const std::size_t nbytes =
            static_cast<std::size_t>(array.flat->owned().numel) * nbytes_of(array.dtype);
        write_bytes(*part.model->context().updater, array.values, nbytes,
                    [&](std::size_t offset, std::span<std::byte> to) { read(at + offset, to); });
        at += nbytes;
      }
      for (auto* const buffer : part.model->buffers()) {
        std::vector<std::byte> values(buffer->nbytes());
        read(at, values);
        acc::model::set_buffer(part.model->context(), *buffer, values);
        at += values.size();
      }
    }
    state.program = meta.values();
    state.of_rank = meta.values();
  });
  attempt.settle(groups, fmt::format("restoring step {} from memory", step));
  for (const Part& part : parts) {
    renew_weights(*part.model);
  }
  return state;
}

SnapshotMemory::Head SnapshotMemory::head_of(int half) const {
  Head head;
  std::array<std::byte, sizeof(Head)> bytes{};
  const ssize_t found = ::pread(file_.get(), bytes.data(), bytes.size(),
                                static_cast<off_t>(static_cast<std::uint64_t>(half) * kHalf));
  if (found == static_cast<ssize_t>(bytes.size())) {  // else nothing has been written there
    std::memcpy(&head, bytes.data(), sizeof head);
  }
  return head.magic == kMagic ? head : Head{};
}

bool SnapshotMemory::is_whole(int half, const Head& head) const {
  if (head.complete == 0) {
    return false;
  }
  std::uint64_t at = static_cast<std::uint64_t>(half) * kHalf + kHeadBytes;
  std::uint64_t left = head.meta_nbytes + head.values_nbytes;
  if (head.meta_nbytes > kHalf || head.values_nbytes > kHalf - kHeadBytes) {
    return false;
  }
  std::uint32_t sum = 0;
  std::vector<std::byte> tile(std::min<std::uint64_t>(kSnapshotTile, left));
  while (left > 0) {
    const auto part = std::span(tile).first(std::min<std::uint64_t>(tile.size(), left));
    read(at, part);
    sum = crc32(sum, part);
    at += part.size();
    left -= part.size();
  }
  return sum == head.crc32;
}

std::string SnapshotMemory::meta_of(int half, const Head& head) const {
  std::string meta(head.meta_nbytes, '\0');
  read(static_cast<std::uint64_t>(half) * kHalf + kHeadBytes,
       std::as_writable_bytes(std::span(meta)));
  return meta;
}

void SnapshotMemory::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t found = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (found < 0 && errno == EINTR) {
      continue;
    }
    if (found <= 0) {
      throw Error(Errc::config, fmt::format("cannot read the memory for snapshots, {}: {}", path_,
                                            found == 0 ? "it is too short"
                                                       : std::generic_category().message(errno)));
    }
    to = to.subspan(static_cast<std::size_t>(found));
    offset += static_cast<std::uint64_t>(found);
  }
}

void SnapshotMemory::write(std::uint64_t offset, std::span<const std::byte> from) const {
  while (!from.empty()) {
    const ssize_t done =
        ::pwrite(file_.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      throw Error(errno == ENOMEM || errno == ENOSPC ? Errc::out_of_memory : Errc::config,
                  fmt::format("cannot write to the memory for snapshots, {}: {}", path_,
                              std::generic_category().message(errno)));
    }
    from = from.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

}  // namespace acc::state_dict
