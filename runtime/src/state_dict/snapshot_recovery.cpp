// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_recovery.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "model/buffers.hpp"
#include "sharding/shard_layout.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/device_bytes.hpp"
#include "state_dict/rule_states.hpp"
#include "state_dict/saved_arrays.hpp"
#include "state_dict/stored_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace acc::state_dict {
namespace {

constexpr std::size_t kBroadcastTile = std::size_t{4} << 20;

/// Integers that ranks gather as doubles, whose bits only are copied.
double as_double(std::uint64_t bits) {
  return std::bit_cast<double>(bits);
}
std::uint64_t as_bits(double value) {
  return std::bit_cast<std::uint64_t>(value);
}
template <typename Integer>
double of_integer(Integer value) {
  return as_double(static_cast<std::uint64_t>(value));
}
template <typename Integer>
Integer to_integer(double value) {
  return static_cast<Integer>(as_bits(value));
}

constexpr std::size_t kFields = 9;

}  // namespace

SnapshotRecovery::SnapshotRecovery(const SnapshotMemory* memory, std::span<const Part> parts,
                                   const std::string& run)
    : memory_(memory),
      parts_(parts.begin(), parts.end()),
      context_(parts.front().model->context()) {
  gather(look(run));
  const auto layouts =
      sharding::all_gather(context_.groups, *context_.device,
                           std::array<double, 2>{as_double(layout_hash(meta_of(parts_, {}))),
                                                 of_integer(context_.settings.identity.node_rank)});
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < layouts.size(); i += 2) {
    hashes.push_back(as_bits(layouts[i]));
    machines_.push_back(to_integer<int>(layouts[i + 1]));
  }
  search_ = choose_snapshots(held_, hashes, machines_, context_.settings.elastic_replicas);
}

/// The whole snapshots in this rank's part of its machine's files.
std::vector<HeldSnapshot> SnapshotRecovery::look(const std::string& run) const {
  std::vector<HeldSnapshot> found;
  if (memory_ == nullptr) {
    return found;
  }
  const auto& identity = context_.settings.identity;
  const std::uint64_t run_hash = hash_of(run);
  const std::uint64_t model = model_hash(parts_);
  for (auto file = static_cast<std::size_t>(identity.local_rank); file < memory_->files();
       file += static_cast<std::size_t>(identity.local_world_size)) {
    const SnapshotFile* const from = memory_->file(file);
    for (int place = 0; from != nullptr && place < SnapshotFile::kPlaces; ++place) {
      try {
        const SnapshotFile::Head head = from->head(place);
        if (head.run == run_hash && head.model == model && from->is_whole(place)) {
          found.push_back({.history = head.history,
                           .step = head.step,
                           .rank = head.rank,
                           .ranks = head.ranks,
                           .shards = head.shards,
                           .has_all = head.has_all != 0,
                           .layout = head.layout,
                           .holder = identity.rank,
                           .file = static_cast<int>(file),
                           .place = place});
        }
      } catch (const Error& error) {
        logger(Component::runtime).warn("a snapshot in memory is not used: {}", error.what());
      }
    }
  }
  return found;
}

/// Tells all ranks of the snapshots of each.
void SnapshotRecovery::gather(const std::vector<HeldSnapshot>& own) {
  const std::array<double, 1> count = {of_integer(own.size())};
  const auto counts = sharding::all_gather(context_.groups, *context_.device, count);
  std::size_t most = 0;
  for (const double each : counts) {
    most = std::max(most, to_integer<std::size_t>(each));
  }
  if (most == 0) {
    return;
  }
  std::vector<double> fields;
  for (const HeldSnapshot& each : own) {
    for (const double field :
         {as_double(each.history), of_integer(each.step), of_integer(each.rank),
          of_integer(each.ranks), of_integer(each.shards), of_integer(each.has_all ? 1 : 0),
          as_double(each.layout), of_integer(each.file), of_integer(each.place)}) {
      fields.push_back(field);
    }
  }
  fields.resize(most * kFields);
  const auto all = sharding::all_gather(context_.groups, *context_.device, fields);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (std::size_t i = 0; i < to_integer<std::size_t>(counts[rank]); ++i) {
      const double* const from = all.data() + (rank * most + i) * kFields;
      held_.push_back({.history = as_bits(from[0]),
                       .step = to_integer<std::int64_t>(from[1]),
                       .rank = to_integer<int>(from[2]),
                       .ranks = to_integer<int>(from[3]),
                       .shards = to_integer<int>(from[4]),
                       .has_all = to_integer<int>(from[5]) != 0,
                       .layout = as_bits(from[6]),
                       .holder = static_cast<int>(rank),
                       .file = to_integer<int>(from[7]),
                       .place = to_integer<int>(from[8])});
    }
  }
}

bool SnapshotRecovery::is_here(const HeldSnapshot& each) const {
  return machines_[static_cast<std::size_t>(each.holder)] == context_.settings.identity.node_rank;
}

void SnapshotRecovery::open_sources() {
  const auto rank = static_cast<std::size_t>(context_.groups.world->rank());
  for (const std::size_t number : search_.choice->sources[rank]) {
    Source& source = sources_[number];
    const HeldSnapshot& held = held_[number];
    if (!is_here(held)) {
      continue;
    }
    source.file = memory_ != nullptr ? memory_->file(static_cast<std::size_t>(held.file)) : nullptr;
    if (source.file == nullptr) {
      throw Error(Errc::config, fmt::format("cannot open the memory of snapshots of rank {}, which "
                                            "rank {} can",
                                            held.rank, held.holder));
    }
    source.place = held.place;
    const std::string packed = source.file->meta(held.place);
    source.meta_nbytes = packed.size();
    source.meta = unpack(packed);
  }
}

void SnapshotRecovery::broadcast(std::span<std::byte> bytes, int root) const {
  device::Device& device = *context_.device;
  const auto memory = device.allocate(bytes.size(), "snapshot of another machine");
  device.copy(memory->data(), bytes.data(), bytes.size(), device.compute());
  context_.groups.world->broadcast(memory->data(), bytes.size(), root)->wait_released();
  device.copy(bytes.data(), memory->data(), bytes.size(), device.compute());
  device.record(device.compute())->synchronize();
}

/// Sends the meta data of the snapshots that another machine reads. A holder that cannot read its
/// memory sends nothing, and the readers fail.
void SnapshotRecovery::exchange_meta() {
  for (const std::size_t number : search_.choice->sent) {
    const HeldSnapshot& held = held_[number];
    const bool holds = held.holder == context_.groups.world->rank();
    std::string packed;
    if (holds) {
      try {
        packed = memory_->file(static_cast<std::size_t>(held.file))->meta(held.place);
      } catch (const Error& error) {
        logger(Component::runtime).warn("a snapshot in memory cannot be sent: {}", error.what());
      }
    }
    std::uint64_t nbytes = packed.size();
    broadcast(std::as_writable_bytes(std::span(&nbytes, 1)), held.holder);
    packed.resize(nbytes);
    if (nbytes > 0) {
      broadcast(std::as_writable_bytes(std::span(packed)), held.holder);
    }
    const auto source = sources_.find(number);
    if (source != sources_.end() && source->second.file == nullptr && nbytes > 0) {
      source->second.meta = unpack(packed);
      source->second.meta_nbytes = nbytes;
      source->second.arrived = std::make_unique<SnapshotFile>();
      source->second.file = source->second.arrived.get();
    }
  }
}

/// Sends their values. Each rank keeps what it reads.
void SnapshotRecovery::exchange_values(Attempt& attempt) {
  std::vector<std::byte> tile(kBroadcastTile);
  for (const std::size_t number : search_.choice->sent) {
    const HeldSnapshot& held = held_[number];
    const bool holds = held.holder == context_.groups.world->rank();
    std::array<std::uint64_t, 2> sizes{};  // of the values; of what is before them
    const SnapshotFile* from = nullptr;
    if (holds) {
      from = memory_->file(static_cast<std::size_t>(held.file));
      const SnapshotFile::Head head = from->head(held.place);
      sizes = {head.values_nbytes, head.meta_nbytes};
    }
    broadcast(std::as_writable_bytes(std::span(sizes)), held.holder);
    const auto source = sources_.find(number);
    Source* const to =
        source != sources_.end() && source->second.arrived != nullptr ? &source->second : nullptr;
    std::uint64_t is_read = 1;
    for (std::uint64_t at = 0; at < sizes[0]; at += kBroadcastTile) {
      const auto part =
          std::span(tile).first(std::min<std::uint64_t>(kBroadcastTile, sizes[0] - at));
      if (from != nullptr && is_read != 0) {
        try {
          from->read(held.place, sizes[1] + at, part);
        } catch (const Error&) {
          is_read = 0;
        }
      }
      broadcast(part, held.holder);
      const auto is_wanted = [&](const auto& each) {
        return each.first < at + part.size() && at < each.second;
      };
      if (to != nullptr && std::ranges::any_of(to->wanted, is_wanted)) {
        attempt([&] { to->arrived->write(0, to->meta_nbytes + at, part); });
      }
    }
    broadcast(std::as_writable_bytes(std::span(&is_read, 1)), held.holder);
    attempt([&] {
      if (is_read == 0) {
        throw Error(Errc::config, fmt::format("rank {} cannot read the snapshot of rank {}",
                                              held.holder, held.rank));
      }
    });
  }
}

SnapshotRecovery::StoredByPlace SnapshotRecovery::stored_of(std::size_t model) const {
  StoredByPlace stored;
  const auto rank = static_cast<std::size_t>(context_.groups.world->rank());
  for (const std::size_t number : search_.choice->sources[rank]) {
    for (const SnapshotMeta::Array& array : sources_.at(number).meta.models.at(model).arrays) {
      for (const SnapshotMeta::Piece& piece : array.pieces) {
        stored[{array.kind, piece.name}].push_back({number, piece});
      }
    }
  }
  return stored;
}

/// Finds elements [wanted.first, wanted.second) of a parameter: of several sources the first.
void SnapshotRecovery::add_reads(const StoredByPlace& stored,
                                 const sharding::ParameterRecord& record, const FlatArray& array,
                                 std::pair<std::int64_t, std::int64_t> wanted,
                                 std::int64_t in_shard, std::vector<Read>& to) const {
  const auto size = static_cast<std::int64_t>(nbytes_of(array.dtype));
  std::vector<std::pair<std::int64_t, std::int64_t>> missing = {wanted};
  const auto pieces = stored.find({array.kind, record.name});
  for (const Stored& each : pieces != stored.end() ? pieces->second : std::vector<Stored>{}) {
    std::vector<std::pair<std::int64_t, std::int64_t>> still;
    for (const auto& [begin, end] : missing) {
      const std::int64_t first = std::max(begin, each.piece.begin);
      const std::int64_t last = std::min(end, each.piece.begin + each.piece.numel);
      if (first >= last) {
        still.emplace_back(begin, end);
        continue;
      }
      to.push_back({each.source,
                    each.piece.at + static_cast<std::uint64_t>((first - each.piece.begin) * size),
                    static_cast<std::size_t>((in_shard + first - wanted.first) * size),
                    static_cast<std::size_t>((last - first) * size)});
      if (begin < first) {
        still.emplace_back(begin, first);
      }
      if (last < end) {
        still.emplace_back(last, end);
      }
    }
    missing = std::move(still);
    if (missing.empty()) {
      return;
    }
  }
  throw Error(Errc::internal,
              fmt::format("no snapshot in memory has elements {} to {} of {} of {}",
                          missing.front().first, missing.front().second, array.kind, record.name));
}

void SnapshotRecovery::plan() {
  for (const auto& [number, source] : sources_) {
    if (source.file == nullptr || source.meta.models.size() != parts_.size()) {
      throw Error(Errc::config,
                  fmt::format("the snapshot of rank {} did not arrive", held_[number].rank));
    }
  }
  for (std::size_t model = 0; model < parts_.size(); ++model) {
    const StoredByPlace stored = stored_of(model);
    auto& reads = reads_.emplace_back();
    for (const FlatArray& array : snapshot_arrays(parts_[model])) {
      auto& of_array = reads.emplace_back();
      for (const std::size_t i : array.parameters) {
        const auto piece = overlap(*array.layout, i, array.owned);
        if (piece.numel > 0) {
          add_reads(stored, (*array.records)[i], array,
                    {piece.in_parameter, piece.in_parameter + piece.numel}, piece.in_shard,
                    of_array);
        }
      }
      for (const Read& each : of_array) {
        sources_.at(each.source).wanted.emplace_back(each.at, each.at + each.nbytes);
      }
    }
  }
  for (auto& [number, source] : sources_) {
    for (const SnapshotMeta::Model& model : source.meta.models) {
      for (const SnapshotMeta::Buffer& buffer : model.buffers) {
        source.wanted.emplace_back(buffer.at, buffer.at + buffer.nbytes);
      }
    }
  }
}

void SnapshotRecovery::fill(std::size_t model) {
  const Part& part = parts_[model];
  const auto read = [&](const Source& source, std::uint64_t at, std::span<std::byte> to) {
    source.file->read(source.arrived != nullptr ? 0 : source.place, source.meta_nbytes + at, to);
  };
  std::size_t number = 0;
  for (const FlatArray& array : snapshot_arrays(part)) {
    const std::vector<Read>& reads = reads_[model][number++];
    const auto fill_part = [&](std::size_t at, std::span<std::byte> to) {
      std::ranges::fill(to, std::byte{0});  // the gaps between parameters
      for (const Read& each : reads) {
        const std::size_t begin = std::max(at, each.in_array);
        const std::size_t end = std::min(at + to.size(), each.in_array + each.nbytes);
        if (begin < end) {
          read(sources_.at(each.source), each.at + (begin - each.in_array),
               to.subspan(begin - at, end - begin));
        }
      }
    };
    if (array.packed != nullptr) {
      std::vector<float> values(optim::PackedStates::kPartNumel);
      for (const auto& each : array.packed->parts()) {
        fill_part(
            static_cast<std::size_t>(each.in_shard) * sizeof(float),
            std::as_writable_bytes(std::span(values).first(static_cast<std::size_t>(each.numel))));
        array.packed->write(array.state, each, values.data());
      }
      continue;
    }
    write_bytes(*part.model->context().updater, array.values,
                static_cast<std::size_t>(array.owned.numel) * nbytes_of(array.dtype), fill_part);
  }
  const auto rank = static_cast<std::size_t>(context_.groups.world->rank());
  const Source& first = sources_.at(search_.choice->sources[rank].front());
  const SnapshotMeta::Model& from = first.meta.models[model];
  auto stored = from.buffers.begin();
  for (auto* const buffer : part.model->buffers()) {
    std::vector<std::byte> values(buffer->nbytes());
    const auto found = std::find_if(stored, from.buffers.end(), [&](const auto& each) {
      return each.name == buffer->name && each.nbytes == values.size();
    });
    if (found == from.buffers.end()) {
      throw Error(Errc::internal, "no snapshot in memory has buffer " + buffer->name);
    }
    read(first, found->at, values);
    acc::model::set_buffer(part.model->context(), *buffer, values);
  }
  part.optimizer->steps = from.steps;
  part.optimizer->skipped_steps = from.skipped_steps;
  part.model->seed_noise(from.seed);
  if (part.optimizer->scaler()) {
    part.optimizer->scaler()->restore(from.scaler);
  }
}

/// The program's values: of rank 0, and those of the rank with this rank's number.
SavedState SnapshotRecovery::state() const {
  const int rank = context_.groups.world->rank();
  const auto& sources = search_.choice->sources[static_cast<std::size_t>(rank)];
  const SavedState& first = sources_.at(sources.front()).meta.state;
  SavedState state{.program = first.program, .of_rank = {}};
  for (const std::size_t number : sources) {
    if (held_[number].rank == rank) {
      state.of_rank = sources_.at(number).meta.state.of_rank;
      break;
    }
  }
  if (search_.choice->same_layout) {
    add_values_of_shards(first.of_rank, state.of_rank);
  }
  return state;
}

/// The next snapshot replaces one that is not whole, so that the chosen one stays until all ranks
/// have another.
void SnapshotRecovery::forget_others() const {
  const HeldSnapshot& chosen = held_[search_.choice->sources.front().front()];
  const auto& identity = context_.settings.identity;
  for (auto file = static_cast<std::size_t>(identity.local_rank);
       memory_ != nullptr && file < memory_->files();
       file += static_cast<std::size_t>(identity.local_world_size)) {
    const SnapshotFile* const each = memory_->file(file);
    for (int place = 0; each != nullptr && place < SnapshotFile::kPlaces; ++place) {
      const SnapshotFile::Head head = each->head(place);
      if (head.step != chosen.step || head.history != chosen.history) {
        each->forget(place);
      }
    }
  }
}

SavedState SnapshotRecovery::restore() {
  for (const Part& part : parts_) {
    await_readers(*part.model);
  }
  context_.groups.world->barrier()->wait();
  SavedState restored;
  Attempt attempt;
  attempt([&] { open_sources(); });
  exchange_meta();
  attempt([&] { plan(); });
  exchange_values(attempt);
  attempt([&] {
    for (std::size_t model = 0; model < parts_.size(); ++model) {
      fill(model);
    }
    restored = state();
    load_rule_states(parts_, restored, fmt::format("step {} in memory", search_.choice->step));
  });
  attempt.settle(context_.groups,
                 fmt::format("restoring step {} from memory", search_.choice->step));
  for (const Part& part : parts_) {
    part.optimizer->finish_loading();
    renew_weights(*part.model);
  }
  if (!context_.settings.elastic_replicas) {
    forget_others();  // else the older ones stay until all ranks have copies of the chosen one
  }
  return restored;
}

}  // namespace acc::state_dict
