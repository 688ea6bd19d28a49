// SPDX-License-Identifier: Apache-2.0
#include "sharding/initial_values.hpp"

#include "acc/base/hash.hpp"
#include "sharding/host_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace acc::sharding {
namespace {

/// Elements per broadcast: 4 MiB. Bounds the memory of rank 0 for whole parameters.
constexpr std::int64_t kChunk = 1 << 20;

/// Wraps `source` for one parameter: calls it once for the whole parameter and answers later ranges
/// from that copy. For sources that must not be called for a part (zero3_init false).
ValueSource in_one_piece(const ValueSource& source, std::int64_t numel) {
  return [&source, numel, values = std::vector<float>{}](std::size_t index, std::int64_t offset,
                                                         std::span<float> out) mutable {
    if (values.empty()) {
      values.resize(static_cast<std::size_t>(numel));
      source(index, 0, values);
    }
    std::copy_n(values.begin() + offset, out.size(), out.begin());
  };
}

/// The part of a flat parameter that this rank owns, while it is filled in host memory. `finish`
/// rounds the values and writes them to the master weights.
class OwnPart {
 public:
  OwnPart(const Context& context, FlatParameter& flat)
      : context_(context),
        flat_(flat),
        values_(*context.updater, flat.master(), flat.stored(), flat.owned().numel,
                HostArray::Copy::of_zeros) {}

  /// Calls `source` for this rank's part of the parameter only.
  void fill_alone(std::size_t index, const ValueSource& source) {
    const Overlap part = overlap(flat_.layout(), index, flat_.owned());
    if (part.numel > 0) {
      call(source, index, part.in_parameter,
           {values_.data() + part.in_shard, static_cast<std::size_t>(part.numel)});
    }
  }

  /// Computes the whole parameter on every rank, even if the rank owns no element of it
  /// (zero3_init false).
  void fill_from_whole(std::size_t index, const ValueSource& source) {
    const ValueSource whole = in_one_piece(source, flat_.layout().numels[index]);
    call(whole, index, 0, {});
    fill_alone(index, whole);
  }

  /// Rank 0 calls `source` and broadcasts, chunk by chunk; collective over the world.
  void fill_from_rank_zero(std::size_t index, const ValueSource& source) {
    device::Device& device = *context_.device;
    const std::int64_t numel = flat_.layout().numels[index];
    const auto chunk = device.allocate(
        static_cast<std::size_t>(std::min(numel, kChunk)) * sizeof(float), "initial values");
    for (std::int64_t begin = 0; begin < numel; begin += kChunk) {
      const std::int64_t length = std::min(kChunk, numel - begin);
      if (context_.groups.world->rank() == 0) {
        ask(index, begin, length, chunk->as<float>(), source);
      }
      context_.groups.world
          ->broadcast(chunk->data(), static_cast<std::size_t>(length) * sizeof(float), 0)
          ->wait_released();
      keep(index, begin, length, chunk->as<float>());
    }
  }

  void finish() {
    flat_.round_initial(values_.data(), static_cast<std::size_t>(flat_.owned().numel));
    values_.write_back();
    flat_.round_master();
  }

 private:
  /// Rank 0: fills a chunk.
  void ask(std::size_t index, std::int64_t begin, std::int64_t length, float* to,
           const ValueSource& source) {
    HostArray made(*context_.device, to, DType::float32, length, HostArray::Copy::of_zeros);
    call(source, index, begin, {made.data(), static_cast<std::size_t>(length)});
    made.write_back();
  }

  /// Calls `source`. If it fails, the peers fail too: they already wait in a collective, or will.
  void call(const ValueSource& source, std::size_t index, std::int64_t offset,
            std::span<float> out) const {
    with_program(context_.groups,
                 fmt::format("the values of parameter {}", flat_.parameters()[index].name),
                 [&] { source(index, offset, out); });
  }

  /// Copies the elements of a received chunk that this rank owns.
  void keep(std::size_t index, std::int64_t begin, std::int64_t length, const float* from) {
    const Overlap part = overlap(flat_.layout(), index, flat_.owned());
    const std::int64_t first = std::max(begin, part.in_parameter);
    const std::int64_t end = std::min(begin + length, part.in_parameter + part.numel);
    if (first < end) {
      device::Device& device = *context_.device;
      device.copy(values_.data() + part.in_shard + (first - part.in_parameter),
                  from + (first - begin), static_cast<std::size_t>(end - first) * sizeof(float),
                  device.compute());
      device.record(device.compute())->synchronize();
    }
  }

  const Context& context_;
  FlatParameter& flat_;
  HostArray values_;
};

}  // namespace

void fill_by_each_rank(const Context& context, FlatParameter& flat, const ValueSource& source) {
  OwnPart own(context, flat);
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    own.fill_alone(i, source);
  }
  own.finish();
}

void fill_by_rank_zero(const Context& context, FlatParameter& flat, const ValueSource& source) {
  OwnPart own(context, flat);
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    own.fill_from_rank_zero(i, source);
  }
  own.finish();
}

void initialize(const Context& context, FlatParameter& flat, std::uint64_t seed, bool known) {
  const settings::ShardingSettings& settings = context.settings.sharding;
  const auto& parameters = flat.parameters();
  const ValueSource source = [&](std::size_t index, std::int64_t offset, std::span<float> out) {
    if (known || parameters[index].initializer.repeatable()) {
      parameters[index].initializer(stream_of(parameters[index].name, seed), offset, out);
    } else {
      std::ranges::fill(out, 0.0F);
    }
  };
  flat.seed_noise(stream_of(parameters.front().name, seed));
  OwnPart own(context, flat);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    // The branch must be the same on all ranks, since only one of them is collective. It depends on
    // the settings and on how the program declared the initialiser.
    const bool differs = !parameters[i].initializer.same_everywhere();
    if (differs && settings.sync_module_states && !flat.ignored()) {
      own.fill_from_rank_zero(
          i, settings.zero3_init ? source : in_one_piece(source, flat.layout().numels[i]));
    } else if (settings.zero3_init) {
      own.fill_alone(i, source);
    } else {
      own.fill_from_whole(i, source);
    }
  }
  own.finish();
}

std::uint64_t stream_of(std::string_view name, std::uint64_t seed) noexcept {
  return fnv1a(name, 1469598103934665603ULL ^ seed);
}

}  // namespace acc::sharding
