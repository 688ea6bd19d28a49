// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "collectives/shm/shm_group.hpp"
#include "kernels/kernels.hpp"
#include "kernels/stream_copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

// The collectives of ShmGroup. Each one posts a descriptor and gives `issue` a function with this
// rank's share of the work. Depending on where the input lies there are two cases:
//  - group memory: the function reads the peers' inputs directly (`input_of`) and needs no help;
//  - private memory: all ranks copy piece by piece through their staging chunks (`run_staged`),
//    which needs all of them to wait at the same time.
// Sums are computed in rank order in both cases, so all ranks get bitwise equal results.
namespace acc::collectives {

WorkPtr ShmGroup::barrier() {
  return issue({.kind = OpKind::barrier}, nullptr, false);
}

WorkPtr ShmGroup::all_gather(const void* shard, void* out, std::size_t shard_nbytes) {
  const auto slice = [shard_nbytes, to = static_cast<std::byte*>(out)](int r) {
    return to + shard_nbytes * static_cast<std::size_t>(r);
  };
  OpDescriptor descriptor{.kind = OpKind::all_gather, .count = shard_nbytes};
  const auto target = find(out);
  // One copy for all ranks: each rank writes its slice into it, and the post publishes the slice.
  // Old content may be overwritten only when all ranks have released it.
  if (target && target->segment->stride == 0) {
    if (slice(rank()) != shard) {
      if (const WorkPtr released = std::exchange(released_[slice(0)], nullptr)) {
        released->wait();
      }
      std::memcpy(slice(rank()), shard, shard_nbytes);
    }
    return issue(descriptor, nullptr, false);
  }
  // Private gathered memory: the peers' shards are copied, from their buffers or through staging.
  const auto source = find(shard);
  describe_input(descriptor, source);
  if (slice(rank()) != shard) {
    std::memcpy(slice(rank()), shard, shard_nbytes);
  }
  const std::uint32_t sequence = issued_ + 1;
  if (source) {
    return issue(
        descriptor,
        [this, sequence, slice, shard_nbytes] {
          for (int r = 0; r < size(); ++r) {
            if (r != rank()) {
              std::memcpy(slice(r), input_of(r, sequence, 0, shard_nbytes, 1), shard_nbytes);
            }
          }
        },
        false);
  }
  return issue(
      descriptor,
      [this, slice, shard_nbytes] {
        run_staged(
            shard_nbytes, kStagingChunk,
            [&](std::byte* stage, std::size_t begin, std::size_t length) {
              kernels::stream_copy(stage, slice(rank()) + begin, length);
            },
            [&](std::size_t begin, std::size_t length) {
              for (int r = 0; r < size(); ++r) {
                if (r != rank()) {
                  std::memcpy(slice(r) + begin, staging_.of(r), length);
                }
              }
            });
      },
      true);
}

WorkPtr ShmGroup::reduce_slices(const void* in, std::size_t call_numel, DType dtype,
                                std::vector<std::size_t> firsts, std::vector<float*> outs,
                                std::size_t numel, ReduceOptions options) {
  OpDescriptor descriptor{.kind = OpKind::reduce_scatter, .dtype = dtype, .count = call_numel};
  const auto source = find(in);
  if (!source) {
    throw Error(Errc::invalid_argument, "reduce_slices needs contribution memory of the group");
  }
  describe_input(descriptor, source);
  const std::uint32_t sequence = issued_ + 1;
  return issue(
      descriptor,
      [this, sequence, dtype, numel, options, firsts = std::move(firsts), outs = std::move(outs)] {
        const std::size_t width = nbytes_of(dtype);
        std::vector<const void*> sources(static_cast<std::size_t>(size()));
        for (std::size_t i = 0; i < firsts.size(); ++i) {
          for (int r = 0; r < size(); ++r) {
            sources[static_cast<std::size_t>(r)] =
                input_of(r, sequence, firsts[i] * width, numel * width, width);
          }
          float* const out = outs[i];
          kernels::kernels().reduce({.sources = sources,
                                     .destinations = {&out, 1},
                                     .numel = numel,
                                     .dtype = dtype,
                                     .scale = options.scale,
                                     .accumulate = options.accumulate});
        }
      },
      false);
}

WorkPtr ShmGroup::reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                 ReduceOptions options) {
  if (find(in)) {
    return reduce_slices(in, shard_numel, dtype, {shard_numel * static_cast<std::size_t>(rank())},
                         {out}, shard_numel, options);
  }
  OpDescriptor descriptor{
      .kind = OpKind::reduce_scatter, .dtype = dtype, .staged = 1, .count = shard_numel};
  return issue(
      descriptor,
      [=, this] {
        // A chunk holds the same range [begin, begin + length) of every rank's slice, in rank
        // order.
        const std::size_t width = nbytes_of(dtype);
        const std::size_t ranks = static_cast<std::size_t>(size());
        const auto* from = static_cast<const std::byte*>(in);
        std::vector<const void*> sources(ranks);
        run_staged(
            shard_numel * width, kStagingChunk / ranks / 64 * 64,
            [&](std::byte* stage, std::size_t begin, std::size_t length) {
              for (std::size_t r = 0; r < ranks; ++r) {
                kernels::stream_copy(stage + r * length, from + r * shard_numel * width + begin,
                                     length);
              }
            },
            [&](std::size_t begin, std::size_t length) {
              for (std::size_t r = 0; r < ranks; ++r) {
                sources[r] =
                    staging_.of(static_cast<int>(r)) + static_cast<std::size_t>(rank()) * length;
              }
              float* const to = out + begin / width;
              kernels::kernels().reduce({.sources = sources,
                                         .destinations = {&to, 1},
                                         .numel = length / width,
                                         .dtype = dtype,
                                         .scale = options.scale,
                                         .accumulate = options.accumulate});
            });
      },
      true);
}

/// All-reduce in place, for buffers in group memory: rank r sums slice r of all ranks' buffers and
/// writes the sum back to all of them. No other rank reads or writes slice r, so no copy is needed.
void ShmGroup::sum_slice_everywhere(std::uint32_t sequence, std::size_t numel, float scale) {
  const std::size_t ranks = static_cast<std::size_t>(size());
  // Multiples of 16 floats (64 bytes), so that two ranks do not write to one cache line.
  const std::size_t width = (numel / ranks + 16) / 16 * 16;
  const std::size_t begin = std::min(numel, width * static_cast<std::size_t>(rank()));
  const std::size_t end = std::min(numel, begin + width);
  std::vector<float*> slices(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::byte* const whole =
        input_of(static_cast<int>(r), sequence, 0, numel * sizeof(float), sizeof(float));
    slices[r] = reinterpret_cast<float*>(const_cast<std::byte*>(whole)) + begin;
  }
  const std::vector<const void*> sources(slices.begin(), slices.end());
  kernels::kernels().reduce(
      {.sources = sources, .destinations = slices, .numel = end - begin, .scale = scale});
}

WorkPtr ShmGroup::all_reduce(float* data, std::size_t numel, DType /*dtype*/, float scale) {
  OpDescriptor descriptor{.kind = OpKind::all_reduce, .dtype = DType::float32, .count = numel};
  const auto place = find(data);
  describe_input(descriptor, place);
  const std::uint32_t sequence = issued_ + 1;
  if (place) {
    return issue(
        descriptor,
        [this, sequence, numel, scale] { sum_slice_everywhere(sequence, numel, scale); }, false,
        true);
  }
  return issue(
      descriptor,
      [this, data, numel, scale] {
        std::vector<const void*> sources(static_cast<std::size_t>(size()));
        run_staged(
            numel * sizeof(float), kStagingChunk,
            [&](std::byte* stage, std::size_t begin, std::size_t length) {
              kernels::stream_copy(stage, reinterpret_cast<std::byte*>(data) + begin, length);
            },
            [&](std::size_t begin, std::size_t length) {
              for (int r = 0; r < size(); ++r) {
                sources[static_cast<std::size_t>(r)] = staging_.of(r);
              }
              float* const to = data + begin / sizeof(float);
              kernels::kernels().reduce({.sources = sources,
                                         .destinations = {&to, 1},
                                         .numel = length / sizeof(float),
                                         .scale = scale});
            });
      },
      true);
}

WorkPtr ShmGroup::all_reduce(std::span<double> data, ReduceOp op) {
  OpDescriptor descriptor{.kind = OpKind::scalars,
                          .dtype = DType::float64,
                          .detail = static_cast<std::uint8_t>(op),
                          .count = data.size()};
  if (data.size() > descriptor.figures.size()) {
    throw Error(Errc::invalid_argument,
                fmt::format("all_reduce of {} scalars, the limit is {} per call", data.size(),
                            descriptor.figures.size()));
  }
  std::copy(data.begin(), data.end(), descriptor.figures.begin());
  const std::uint32_t sequence = issued_ + 1;
  return issue(
      descriptor,
      [this, sequence, data, op] {
        std::vector<const double*> sources;
        for (int r = 0; r < size(); ++r) {
          // Stays valid during the sum: a peer reuses the slot only after this rank has finished.
          sources.push_back(descriptor_of(r, sequence).figures.data());
        }
        double* const out = data.data();
        kernels::reduce_doubles(op, sources, {&out, 1}, data.size());
      },
      false);
}

WorkPtr ShmGroup::broadcast(void* data, std::size_t nbytes, int root) {
  OpDescriptor descriptor{.kind = OpKind::broadcast,
                          .detail = static_cast<std::uint8_t>(root),
                          .staged = 1,
                          .count = nbytes};
  return issue(
      descriptor,
      [this, to = static_cast<std::byte*>(data), nbytes, root] {
        run_staged(
            nbytes, kStagingChunk,
            // All ranks take part in the chunk protocol, but only the root writes its stage.
            [&](std::byte* stage, std::size_t begin, std::size_t length) {
              if (rank() == root) {
                kernels::stream_copy(stage, to + begin, length);
              }
            },
            [&](std::size_t begin, std::size_t length) {
              if (rank() != root) {
                std::memcpy(to + begin, staging_.of(root), length);
              }
            });
      },
      true);
}

// --- staging ---

void ShmGroup::run_staged(std::size_t total, std::size_t piece,
                          const std::function<void(std::byte*, std::size_t, std::size_t)>& fill,
                          const std::function<void(std::size_t, std::size_t)>& drain) {
  const auto what = [this] { return name_of(completed_ + 1); };
  for (std::size_t begin = 0; begin < total; begin += piece) {
    const std::size_t length = std::min(piece, total - begin);
    fill(staging_.next(what), begin, length);
    staging_.post();
    for (int r = 0; r < size(); ++r) {
      staging_.await(r, what);
    }
    drain(begin, length);
    staging_.finish();
  }
}

}  // namespace acc::collectives
