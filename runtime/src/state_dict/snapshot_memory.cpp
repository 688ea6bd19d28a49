// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_memory.hpp"

#include "acc/base/error.hpp"
#include "state_dict/background_thread.hpp"
#include "state_dict/snapshot_meta.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace acc::state_dict {
namespace {

/// Interval in which a wait for another machine looks whether the job has failed.
constexpr std::chrono::milliseconds kGlance{200};
/// Time without a byte after which it then ends: peers that live end their part, however long that
/// takes.
constexpr std::chrono::seconds kWithoutBytes{1};

std::vector<std::unique_ptr<SnapshotFile>> open_all(const std::vector<std::string>& paths,
                                                    std::size_t own) {
  std::vector<std::unique_ptr<SnapshotFile>> files;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    try {
      files.push_back(std::make_unique<SnapshotFile>(paths[i]));
    } catch (const Error&) {
      if (i == own) {
        throw;
      }
      files.push_back(nullptr);
    }
  }
  if (own >= files.size()) {
    throw Error(Errc::config, "the launcher gives this rank no memory for snapshots");
  }
  return files;
}

}  // namespace

/// A snapshot that is being made.
struct SnapshotMemory::Begun {
  int place = 0;
  SnapshotFile::Head head;
  SnapshotMeta meta;
  std::shared_ptr<sharding::LateCopy> copy;
  /// Bytes of a GPU, copied to page-locked memory, from where they are written to the place.
  struct Staged {
    std::span<const std::byte> values;
    std::uint64_t at;
  };
  std::vector<Staged> staged;
};

SnapshotMemory::SnapshotMemory(const std::vector<std::string>& paths, std::size_t own)
    : files_(open_all(paths, own)), own_(*files_[own]) {}

SnapshotMemory::~SnapshotMemory() {
  wait();
}

std::optional<std::string> SnapshotMemory::wait() {
  if (thread_.joinable()) {
    await_thread();
    thread_.join();
  }
  return std::exchange(failure_, std::nullopt);
}

void SnapshotMemory::forget_after(std::int64_t step, const std::string& run) {
  for (const int place : {SnapshotFile::kOwn, SnapshotFile::kOwn + 1}) {
    const SnapshotFile::Head head = own_.head(place);
    if (head.step > step && head.run == hash_of(run)) {
      own_.forget(place);
    }
  }
  kept_.reset();
}

void SnapshotMemory::await_thread() {
  bool stopped = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kGlance, [this] { return ended_; })) {
    if (neighbour_ == nullptr || stopped) {
      continue;
    }
    const auto failure = neighbour_->job_failure();
    if (failure && NeighbourCopy::Clock::now() - neighbour_->moved_at() >= kWithoutBytes) {
      lock.unlock();
      neighbour_->stop(*failure);
      lock.lock();
      stopped = true;
    }
  }
}

void SnapshotMemory::keep(std::span<const Part> parts, const SavedState& state,
                          const Series& series) {
  const std::int64_t step = parts.front().optimizer->steps;
  if (kept_ == step) {  // the step after it was skipped
    return;
  }
  wait();
  kept_ = step;
  std::shared_ptr<Begun> begun;
  std::exception_ptr failed;
  try {
    begun = std::make_shared<Begun>(begin(parts, state, series));
    write_now(parts, *begun);
  } catch (const Error&) {
    failed = std::current_exception();
    begun.reset();
  }
  if (begun != nullptr) {
    for (const Part& part : parts) {
      part.model->late_copies.add(begun->copy, step + series.every);
    }
  }
  // Without a snapshot too: the ranks of other machines exchange theirs with this one.
  ended_ = false;
  if (neighbour_ != nullptr) {
    neighbour_->moved();
  }
  try {
    thread_ = background_thread("acc-snapshot", [this, begun] { complete(begun.get()); });
  } catch (...) {
    if (begun != nullptr) {
      begun->copy->end();  // the next steps do not wait for it
    }
    throw;
  }
  if (failed != nullptr) {
    std::rethrow_exception(failed);
  }
}

SnapshotMemory::Begun SnapshotMemory::begin(std::span<const Part> parts, const SavedState& state,
                                            const Series& series) {
  const auto& context = parts.front().model->context();
  Begun begun;
  begun.place = own_.next(SnapshotFile::kOwn);
  begun.meta = meta_of(parts, state);
  const std::string packed = pack(begun.meta);
  begun.head = {.number = own_.newest(SnapshotFile::kOwn) + 1,
                .run = hash_of(series.run),
                .model = model_hash(parts),
                .layout = layout_hash(begun.meta),
                .history = series.history,
                .step = parts.front().optimizer->steps,
                .rank = context.groups.world->rank(),
                .ranks = context.groups.world->size(),
                .shards = context.groups.plan.state_shards(),
                .meta_nbytes = packed.size(),
                .values_nbytes = begun.meta.values_nbytes};
  own_.begin(begun.place, begun.head);
  own_.write(begun.place, 0, std::as_bytes(std::span(packed)));
  begun.copy = std::make_shared<sharding::LateCopy>(
      [file = &own_, place = begun.place](std::uint64_t at, std::span<const std::byte> bytes) {
        file->write(place, at, bytes);
      });
  return begun;
}

/// Writes what may change at any time, and names the rest to the copy.
void SnapshotMemory::write_now(std::span<const Part> parts, Begun& begun) {
  staging_.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    detail::ModelState& model = *parts[i].model;
    model.context().await_compute();
    device::Device& updater = *model.context().updater;
    device::Stream* side = nullptr;
    const auto& arrays = begun.meta.models[i].arrays;
    const auto at = [&](std::uint64_t in_values) { return begun.head.meta_nbytes + in_values; };
    const auto write = [&](const HeldPtr& held, std::uint64_t in_values) {
      std::uint64_t next = at(in_values);
      held->read_all([&](std::span<const std::byte> bytes) {
        own_.write(begun.place, next, bytes);
        next += bytes.size();
      });
    };
    if (updater.kind() != settings::Device::cpu) {
      const std::uint64_t nbytes = owned_nbytes(snapshot_arrays(parts[i]));
      if (staging_[i] == nullptr || staging_[i]->nbytes() < nbytes) {
        staging_[i] = updater.allocate_host(nbytes, "snapshot in memory");
      }
      side = &model.late_copies.stream(updater);
      updater.wait(*side, *updater.record(updater.compute()));
    }
    std::size_t staged = 0;
    std::size_t number = 0;
    for (const FlatArray& array : snapshot_arrays(parts[i])) {
      const SnapshotMeta::Array& place = arrays[number++];
      const HeldPtr held = hold(model, array);
      if (held->changes() == HeldValues::Changes::at_any_time) {
        write(held, place.at);
      } else if (side == nullptr) {
        begun.copy->add(held->bytes(), at(place.at));
      } else {
        std::byte* const to = staging_[i]->data() + staged;
        begun.staged.push_back({{to, held->nbytes()}, at(place.at)});
        held->copy_to(*staging_[i], staged, *begun.copy, side);
        staged += place.nbytes;
      }
    }
    // Its own two, and as much of a rank of another machine.
    model.memory_snapshot_nbytes =
        static_cast<std::int64_t>(owned_nbytes(snapshot_arrays(parts[i]))) *
            (neighbour_ != nullptr && neighbour_->sends_all() ? 4 : 2) +
        (staging_[i] != nullptr ? static_cast<std::int64_t>(staging_[i]->nbytes()) : 0);
    number = 0;
    for (const auto* const buffer : model.buffers()) {
      write(hold(model, *buffer), begun.meta.models[i].buffers[number++].at);
    }
  }
}

/// The body of the thread.
void SnapshotMemory::complete(const Begun* begun) noexcept {
  bool is_complete = false;
  try {
    if (begun != nullptr) {
      begun->copy->finish();
      for (const Begun::Staged& each : begun->staged) {
        own_.write(begun->place, each.at, each.values);
      }
      own_.complete(begun->place, begun->head);
      is_complete = true;
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
  if (neighbour_ != nullptr) {
    const auto failed = neighbour_->exchange(own_, is_complete ? begun->place : -1);
    failure_ = failure_ ? failure_ : failed;
  }
  if (begun != nullptr) {
    begun->copy->end();
  }
  if (failure_) {
    failure_ = fmt::format("the snapshot of step {}: {}", kept_.value_or(0), *failure_);
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace acc::state_dict
