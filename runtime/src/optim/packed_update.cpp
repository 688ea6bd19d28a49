// SPDX-License-Identifier: Apache-2.0
#include "optim/packed_update.hpp"

#include "acc/base/error.hpp"
#include "kernels/packed_codes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace acc::optim {

using kernels::Extremes;
using kernels::kPackedBlock;
using sharding::Shard;

namespace {

/// Elements that a thread updates at a time, and, with weights or gradients in files, those that
/// are copied at a time.
constexpr std::int64_t kTask = PackedStates::kPartNumel;
constexpr std::int64_t kCopied = 1 << 20;
static_assert(kTask % kPackedBlock == 0 && kCopied % kPackedBlock == 0);

std::int64_t blocks_in(std::int64_t numel) {
  return (numel + kPackedBlock - 1) / kPackedBlock;
}

Extremes extremes_in(const float* values, std::int64_t numel) {
  Extremes found;
  kernels::kernels().extremes(values, static_cast<std::size_t>(numel), &found.highest,
                              &found.lowest);
  return found;
}

/// Appends the extremes of the states of a block to a message.
std::span<double>::iterator append(const std::array<Extremes, kernels::kMostStates>& extremes,
                                   std::size_t states, std::span<double>::iterator to) {
  for (const Extremes& each : std::span(extremes).first(states)) {
    *to++ = static_cast<double>(each.highest);
    *to++ = static_cast<double>(each.lowest);
  }
  return to;
}

/// Memory of at least one byte.
device::MemoryPtr allocate(const sharding::Context& context, std::int64_t nbytes) {
  const auto size = static_cast<std::int64_t>(sizeof(float));
  return context.allocate_working(std::max<std::int64_t>(1, (nbytes + size - 1) / size), "moments");
}

/// Some elements of the arrays of an update in memory: where they lie, or, of arrays in files, as
/// copies.
class HostArrays {
 public:
  HostArrays(device::Device& device, const device::UpdateArrays& arrays, std::size_t begin,
             std::size_t numel)
      : device_(device), arrays_(kernels::arrays_from(arrays, begin)) {
    auto* const grads = const_cast<float*>(arrays_.grads);
    arrays_.grads = static_cast<const float*>(place(grads, numel * sizeof(float), true, false));
    arrays_.weights = place(arrays_.weights, numel * nbytes_of(arrays_.weight_dtype), true, true);
    arrays_.rounded = place(arrays_.rounded, numel * nbytes_of(arrays_.rounded_dtype), false, true);
  }

  [[nodiscard]] const device::UpdateArrays& arrays() const noexcept { return arrays_; }

  /// Writes what has changed to the files.
  void write_back() {
    for (const Copy& each : copies_) {
      if (each.written) {
        device_.copy(each.original, each.values.data(), each.values.size(), device_.compute());
      }
    }
  }

 private:
  struct Copy {
    void* original;
    std::vector<std::byte> values;
    bool written;
  };

  void* place(void* values, std::size_t nbytes, bool is_read, bool is_written) {
    if (values == nullptr || device_.host_can_use(values)) {
      return values;
    }
    copies_.push_back({values, std::vector<std::byte>(nbytes), is_written});
    Copy& copy = copies_.back();
    if (is_read) {
      device_.copy(copy.values.data(), values, nbytes, device_.compute());
    }
    return copy.values.data();
  }

  device::Device& device_;
  device::UpdateArrays arrays_;
  std::vector<Copy> copies_;
};

/// The same elements, in HostArrays.
kernels::PackedRange from_begin(kernels::PackedRange range) {
  range.begin = 0;
  return range;
}

}  // namespace

PackedStates::PackedStates(const sharding::Context& context, sharding::FlatParameter& flat,
                           std::vector<State> states, std::vector<std::size_t> groups,
                           std::int64_t min_numel)
    : context_(context),
      flat_(flat),
      states_(std::move(states)),
      groups_(std::move(groups)),
      min_numel_(min_numel) {
  if (context_.updater->kind() != settings::Device::cpu) {
    throw Error(Errc::not_supported,
                "states_8bit: states of an optimizer in 8 bits are updated on the CPU in this "
                "version of libacc_runtime: offload the optimizer to the CPU");
  }
  const bool is_whole = flat.ignored() || flat.owned().numel == flat.layout().padded_numel;
  for (int i = 0; !is_whole && i < context.groups.plan.shard_size(); ++i) {
    divided_.push_back(divided_in(flat.layout().shard(i)));
  }
  std::int64_t codes = 0;
  std::int64_t scales = 0;
  std::int64_t whole = 0;
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const sharding::Overlap part = overlap(flat.layout(), i, flat.owned());
    if (part.numel == 0) {
      continue;
    }
    const bool packed = is_packed(i);
    pieces_.push_back({.parameter = i,
                       .in_parameter = part.in_parameter,
                       .in_shard = part.in_shard,
                       .numel = part.numel,
                       .packed = packed,
                       .at = packed ? codes : whole,
                       .scales = scales});
    (packed ? codes : whole) += part.numel;
    scales += packed ? blocks_in(part.in_parameter % kPackedBlock + part.numel) : 0;
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const auto size = static_cast<std::int64_t>(sizeof(float));
    Values values{allocate(context, codes), allocate(context, scales * size),
                  allocate(context, whole * size)};
    values_.push_back(std::move(values));
    signed_[i] = states_[i].is_signed;
  }
  clear();
}

void PackedStates::clear() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Values& values = values_[i];
    std::memset(values.codes->data(), signed_[i] ? kernels::kZeroCode : 0, values.codes->nbytes());
    std::memset(values.scales->data(), 0, values.scales->nbytes());
    std::memset(values.whole->data(), 0, values.whole->nbytes());
  }
}

std::int64_t PackedStates::nbytes() const {
  std::size_t total = 0;
  for (const Values& each : values_) {
    total += each.codes->nbytes() + each.scales->nbytes() + each.whole->nbytes();
  }
  return static_cast<std::int64_t>(total);
}

std::span<const PackedStates::Block> PackedStates::own_divided() const {
  if (divided_.empty()) {
    return {};
  }
  return divided_[static_cast<std::size_t>(context_.groups.shard->rank())];
}

bool PackedStates::is_packed(std::size_t parameter) const {
  return flat_.layout().numels[parameter] >= min_numel_;
}

std::vector<PackedStates::Block> PackedStates::divided_in(Shard shard) const {
  std::vector<Block> found;
  for (std::size_t i = 0; i < flat_.layout().numels.size(); ++i) {
    const sharding::Overlap part = overlap(flat_.layout(), i, shard);
    const std::int64_t end = part.in_parameter + part.numel;
    if (part.numel == 0 || !is_packed(i)) {
      continue;
    }
    if (part.in_parameter % kPackedBlock != 0) {
      found.push_back({i, part.in_parameter / kPackedBlock});
    }
    const Block last{i, end / kPackedBlock};
    if (end % kPackedBlock != 0 && end != flat_.layout().numels[i] &&
        (found.empty() || found.back() != last)) {
      found.push_back(last);
    }
  }
  return found;
}

bool PackedStates::divides_blocks() const {
  return std::ranges::any_of(divided_, [](const auto& blocks) { return !blocks.empty(); });
}

kernels::PackedRange PackedStates::range(const Piece& piece, std::int64_t begin,
                                         std::int64_t end) const {
  const std::int64_t offset = begin - piece.in_parameter;
  const std::int64_t block = begin / kPackedBlock - piece.in_parameter / kPackedBlock;
  kernels::PackedRange found{.begin = static_cast<std::size_t>(piece.in_shard + offset),
                             .numel = static_cast<std::size_t>(end - begin),
                             .decays = flat_.parameters()[piece.parameter].weight_decay};
  for (std::size_t i = 0; i < values_.size(); ++i) {
    found.codes[i] = values_[i].codes->as<std::uint8_t>() + piece.at + offset;
    found.scales[i] = values_[i].scales->as<float>() + piece.scales + block;
  }
  return found;
}

kernels::PackedRange PackedStates::part_of(const Block& block) const {
  const auto piece = std::ranges::find(pieces_, block.parameter, &Piece::parameter);
  const std::int64_t begin = block.number * kPackedBlock;
  return range(*piece, std::max(begin, piece->in_parameter),
               std::min(begin + kPackedBlock, piece->in_parameter + piece->numel));
}

void PackedStates::measure(const Step& step, std::span<double> message) {
  device::UpdateArrays arrays = flat_.update_arrays(step.number);
  arrays.clip = step.clip;
  auto to = message.begin();
  for (const Block& block : own_divided()) {
    const kernels::PackedRange part = part_of(block);
    const HostArrays host(*context_.updater, arrays, part.begin, part.numel);
    to = append(kernels::measure_packed(step_of(step, block.parameter), host.arrays(),
                                        from_begin(part), {signed_.data(), states_.size()}),
                states_.size(), to);
  }
}

PackedStates::BlockExtremes PackedStates::extremes_of(
    const Block& block, std::span<const std::span<const double>> messages) const {
  BlockExtremes all;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const auto found = std::ranges::find(divided_[rank], block);
    if (found == divided_[rank].end()) {
      continue;
    }
    const auto at = static_cast<std::size_t>(found - divided_[rank].begin()) * 2 * states_.size();
    for (std::size_t i = 0; i < states_.size(); ++i) {
      all[i].add({.highest = static_cast<float>(messages[rank][at + 2 * i]),
                  .lowest = static_cast<float>(messages[rank][at + 2 * i + 1])});
    }
  }
  return all;
}

void PackedStates::update(const Step& step, std::span<const std::span<const double>> messages) {
  device::UpdateArrays arrays = flat_.update_arrays(step.number);
  arrays.clip = step.clip;
  const kernels::SignedStates states{signed_.data(), states_.size()};
  struct Task {
    const kernels::UpdateStep* step;
    kernels::PackedRange range;
  };
  const auto run = [&](const Task& task, std::span<const Extremes> known) {
    HostArrays host(*context_.updater, arrays, task.range.begin, task.range.numel);
    kernels::update_packed(*task.step, host.arrays(), from_begin(task.range), states, known);
    host.write_back();
  };
  for (const Block& block : own_divided()) {
    const BlockExtremes known = extremes_of(block, messages);
    run({&step_of(step, block.parameter), part_of(block)}, {known.data(), states_.size()});
  }
  // Complete blocks, in parallel unless a file is read and written.
  const std::int64_t size = context_.swap ? kCopied : kTask;
  std::vector<Task> tasks;
  for (const Piece& piece : pieces_) {
    if (!piece.packed) {
      update_whole(piece, step, arrays);
      continue;
    }
    const std::int64_t piece_end = piece.in_parameter + piece.numel;
    const std::int64_t end = piece_end == flat_.layout().numels[piece.parameter]
                                 ? piece_end
                                 : piece_end / kPackedBlock * kPackedBlock;
    for (std::int64_t begin = blocks_in(piece.in_parameter) * kPackedBlock; begin < end;
         begin += size) {
      tasks.push_back(
          {&step_of(step, piece.parameter), range(piece, begin, std::min(begin + size, end))});
    }
  }
  if (context_.swap) {
    for (const Task& task : tasks) {
      run(task, {});
    }
  } else {
    context_.updater->run_parts(tasks.size(), [&](std::size_t i) { run(tasks[i], {}); });
  }
}

// The arrays of the update begin with the piece, as its states do.
void PackedStates::update_whole(const Piece& piece, const Step& step,
                                const device::UpdateArrays& all) const {
  device::Device& updater = *context_.updater;
  HostArrays host(updater, all, static_cast<std::size_t>(piece.in_shard),
                  static_cast<std::size_t>(piece.numel));
  device::UpdateArrays arrays = host.arrays();
  arrays.moment_dtype = DType::float32;
  std::array<void**, kernels::kMostStates> places = {&arrays.first, &arrays.second, &arrays.third};
  for (std::size_t i = 0; i < values_.size(); ++i) {
    *places[i] = values_[i].whole->as<float>() + piece.at;
  }
  const device::UpdateRange range{0, piece.numel, flat_.parameters()[piece.parameter].weight_decay};
  updater.update(step_of(step, piece.parameter), arrays, {&range, 1}, updater.compute());
  host.write_back();
}

void PackedStates::read(std::size_t state, std::int64_t begin, std::int64_t numel,
                        float* to) const {
  std::fill_n(to, numel, 0.0F);
  const Values& values = values_[state];
  for (const Piece& piece : pieces_) {
    const std::int64_t first = std::max(begin, piece.in_shard);
    const std::int64_t end = std::min(begin + numel, piece.in_shard + piece.numel);
    if (first >= end) {
      continue;
    }
    if (!piece.packed) {
      std::copy_n(values.whole->as<float>() + piece.at + (first - piece.in_shard), end - first,
                  to + (first - begin));
      continue;
    }
    const std::int64_t shift = piece.in_parameter - piece.in_shard;  // from shard to parameter
    for (std::int64_t at = first; at < end;) {
      const std::int64_t count = std::min(end - at, kPackedBlock - (at + shift) % kPackedBlock);
      const kernels::PackedRange part = range(piece, at + shift, at + shift + count);
      kernels::kernels().unpack(part.codes[state], signed_[state], *part.scales[state],
                                to + (at - begin), part.numel);
      at += count;
    }
  }
}

std::vector<PackedStates::Part> PackedStates::parts() const {
  std::vector<Part> all;
  for (const Piece& piece : pieces_) {
    const std::int64_t end = piece.in_parameter + piece.numel;
    for (std::int64_t begin = piece.in_parameter; begin < end;) {
      const std::int64_t until = std::min(end, (begin / kPartNumel + 1) * kPartNumel);
      all.push_back({.parameter = piece.parameter,
                     .begin = begin,
                     .numel = until - begin,
                     .in_shard = piece.in_shard + (begin - piece.in_parameter)});
      begin = until;
    }
  }
  return all;
}

void PackedStates::write(std::size_t state, const Part& part, const float* values) {
  const Piece& piece = *std::ranges::find(pieces_, part.parameter, &Piece::parameter);
  if (!piece.packed) {
    std::copy_n(values, part.numel,
                values_[state].whole->as<float>() + piece.at + (part.begin - piece.in_parameter));
    return;
  }
  const std::span<const Block> divided = own_divided();
  written_.resize(divided.size());
  const std::int64_t end = part.begin + part.numel;
  for (std::int64_t begin = part.begin; begin < end;) {
    const Block block{part.parameter, begin / kPackedBlock};
    const std::int64_t until = std::min(end, (block.number + 1) * kPackedBlock);
    const float* const from = values + (begin - part.begin);
    const auto found = std::ranges::find(divided, block);
    if (found != divided.end()) {
      written_[static_cast<std::size_t>(found - divided.begin())][state].assign(
          from, from + (until - begin));
    } else {
      pack(state, range(piece, begin, until), from,
           kernels::scale_of_packed(extremes_in(from, until - begin)));
    }
    begin = until;
  }
}

void PackedStates::pack(std::size_t state, const kernels::PackedRange& range, const float* values,
                        float scale) {
  *range.scales[state] = scale;
  kernels::kernels().pack(values, signed_[state], scale, range.codes[state], range.numel);
}

void PackedStates::describe_written(std::span<double> message) const {
  auto to = message.begin();
  for (const auto& of_block : written_) {
    BlockExtremes found;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      found[i] = extremes_in(of_block[i].data(), std::ssize(of_block[i]));
    }
    to = append(found, states_.size(), to);
  }
}

void PackedStates::finish(std::span<const std::span<const double>> messages) {
  for (std::size_t block = 0; block < written_.size(); ++block) {
    const BlockExtremes known = extremes_of(own_divided()[block], messages);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      pack(i, part_of(own_divided()[block]), written_[block][i].data(),
           kernels::scale_of_packed(known[i]));
    }
  }
  written_.clear();
}

namespace {

/// Messages of the ranks of the shard group by flat parameter, with what `describe` writes for each
/// one that divides blocks; without messages for the others. Collective.
class Messages {
 public:
  Messages(const sharding::Context& context, std::span<PackedStates* const> flats,
           const std::function<void(PackedStates& flat, std::span<double> message)>& describe)
      : context_(context) {
    for (PackedStates* const flat : flats) {
      offsets_.push_back(numel_);
      numels_.push_back(flat->divides_blocks() ? flat->message_numel() : 0);
      numel_ += numels_.back();
    }
    std::vector<double> own(numel_);
    for (std::size_t i = 0; i < flats.size(); ++i) {
      if (numels_[i] > 0) {
        describe(*flats[i], std::span(own).subspan(offsets_[i], numels_[i]));
      }
    }
    if (numel_ > 0) {
      all_ = sharding::all_gather(context.groups, *context.device, own);
    }
  }

  [[nodiscard]] std::vector<std::span<const double>> of(std::size_t flat) const {
    std::vector<std::span<const double>> messages;
    for (const int rank : context_.groups.plan.shard) {
      if (numels_[flat] > 0) {
        messages.push_back(std::span(all_).subspan(
            static_cast<std::size_t>(rank) * numel_ + offsets_[flat], numels_[flat]));
      }
    }
    return messages;
  }

 private:
  const sharding::Context& context_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> numels_;
  std::size_t numel_ = 0;
  std::vector<double> all_;
};

}  // namespace

void update_packed(const sharding::Context& context, std::span<PackedStates* const> flats,
                   const PackedStates::Step& step,
                   const std::function<void(std::size_t flat)>& updated) {
  const Messages messages(
      context, flats, [&](PackedStates& flat, std::span<double> to) { flat.measure(step, to); });
  for (std::size_t i = 0; i < flats.size(); ++i) {
    flats[i]->update(step, messages.of(i));
    updated(i);
  }
}

void finish_packed(const sharding::Context& context, std::span<PackedStates* const> flats) {
  const Messages messages(
      context, flats, [](PackedStates& flat, std::span<double> to) { flat.describe_written(to); });
  for (std::size_t i = 0; i < flats.size(); ++i) {
    flats[i]->finish(messages.of(i));
  }
}

}  // namespace acc::optim
