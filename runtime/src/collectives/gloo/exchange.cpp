// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/exchange.hpp"

#include "kernels/block_code.hpp"
#include "kernels/kernels.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace acc::collectives {

std::string GlooRanks::describe() const {
  return fmt::format("gloo[{}]", fmt::join(spec.ranks, ","));
}

std::shared_ptr<Exchange> GlooRanks::start(std::uint32_t number, OpKind kind, DType dtype,
                                           std::uint64_t count, bool second_phase) {
  std::string call = fmt::format("{} of {} x {}", to_string(kind), count, to_string(dtype));
  // High 32 bits: the collective's number; bit 31: its phase; low 31 bits: a hash of what all ranks
  // must agree on.
  const std::uint64_t detail =
      (count * 31 + static_cast<std::uint64_t>(kind)) * 31 + static_cast<std::uint64_t>(dtype);
  const std::uint64_t tag = (std::uint64_t{number} << 32) |
                            (std::uint64_t{second_phase ? 1U : 0U} << 31) | (detail & 0x7fffffffU);
  watch->called(number, call);
  return std::make_shared<Exchange>(*this, call + " in " + describe(), tag, sent.of(kind));
}

std::vector<void*> slices(const GlooRanks& ranks, void* out, std::size_t nbytes) {
  std::vector<void*> places;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    places.push_back(static_cast<std::byte*>(out) + nbytes * r);
  }
  return places;
}

WorkPtr exchange_shards(const GlooRanks& ranks, std::shared_ptr<Exchange> work, const void* shard,
                        const std::vector<void*>& places, std::size_t shard_nbytes) {
  for (const int peer : ranks.peers) {
    work->receive(peer, places[static_cast<std::size_t>(peer)], shard_nbytes);
  }
  for (const int peer : ranks.peers) {
    work->send(peer, shard, shard_nbytes);
  }
  return work;
}

WorkPtr exchange_coded(const GlooRanks& ranks, std::shared_ptr<Exchange> work, const void* shard,
                       std::vector<void*> places, std::size_t numel, DType dtype, BlockCode code) {
  const std::size_t nbytes = kernels::coded_nbytes(code, numel);
  std::byte* const coded = work->scratch(nbytes * ranks.size()).data();
  kernels::encode(code, shard, dtype, numel, coded + nbytes * ranks.rank());
  std::vector<void*> arrivals = slices(ranks, coded, nbytes);
  void* const own = arrivals[ranks.rank()];
  work->then([=, places = std::move(places)] {
    for (std::size_t r = 0; r < places.size(); ++r) {
      kernels::decode(code, coded + nbytes * r, 0, numel, places[r], dtype);
    }
  });
  return exchange_shards(ranks, std::move(work), own, arrivals, nbytes);
}

namespace {

/// Elements that are read from their code before they are summed: so few that they stay in cache.
constexpr std::size_t kSummedAtOnce = 16 * kernels::kCodeBlock;

/// Contribution of one rank to a sum: in a code, or, if that is null, as it is.
struct CodedPart {
  const std::byte* coded;
  const void* plain;
};

/// out = the sum of parts, in their order. dtype: of the plain ones.
void sum_coded(BlockCode code, const std::vector<CodedPart>& parts, std::size_t numel, DType dtype,
               float* out, ReduceOptions options) {
  std::vector<float> values(parts.size() * kSummedAtOnce);
  std::vector<const void*> sources;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    sources.push_back(values.data() + r * kSummedAtOnce);
  }
  for (std::size_t first = 0; first < numel; first += kSummedAtOnce) {
    const std::size_t count = std::min(kSummedAtOnce, numel - first);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      float* const to = values.data() + r * kSummedAtOnce;
      if (parts[r].coded != nullptr) {
        kernels::decode(code, parts[r].coded, first, count, to, DType::float32);
      } else {
        kernels::cast(static_cast<const std::byte*>(parts[r].plain) + first * nbytes_of(dtype),
                      dtype, to, DType::float32, count);
      }
    }
    float* const sums = out + first;
    kernels::kernels().reduce({.sources = sources,
                               .destinations = {&sums, 1},
                               .numel = count,
                               .scale = options.scale,
                               .accumulate = options.accumulate});
  }
}

/// sum_parts with a code. Parts that are one array are encoded once.
std::shared_ptr<Exchange> sum_coded_parts(GlooRanks& ranks, const RankSum& sum) {
  const BlockCode code = sum.options.code;
  const std::size_t nbytes = kernels::coded_nbytes(code, sum.numel);
  auto work = ranks.start(sum.number, sum.kind, sum.dtype, sum.numel);
  // Received parts in rank order, with this rank's own at its place; then what is sent.
  std::byte* const received = work->scratch(2 * nbytes * ranks.size()).data();
  std::byte* const sent = received + nbytes * ranks.size();
  std::vector<CodedPart> parts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    parts.push_back({received + nbytes * r, nullptr});
    if (r != ranks.rank()) {
      work->receive(static_cast<int>(r), received + nbytes * r, nbytes);
    }
  }
  const void* encoded = nullptr;
  std::byte* place = sent;
  for (const int peer : ranks.peers) {
    const void* const part = sum.parts[static_cast<std::size_t>(peer)];
    if (part != encoded) {
      place = sent + nbytes * static_cast<std::size_t>(peer);
      kernels::encode(code, part, sum.dtype, sum.numel, place);
      encoded = part;
    }
    work->send(peer, place, nbytes);
  }
  parts[ranks.rank()] =
      sum.own_as_sent ? CodedPart{place, nullptr} : CodedPart{nullptr, sum.parts[ranks.rank()]};
  work->then([=, numel = sum.numel, dtype = sum.dtype, out = sum.out, options = sum.options] {
    sum_coded(code, parts, numel, dtype, out, options);
  });
  return work;
}

}  // namespace

std::shared_ptr<Exchange> sum_parts(GlooRanks& ranks, const RankSum& sum) {
  if (sum.options.code) {
    return sum_coded_parts(ranks, sum);
  }
  auto work = ranks.start(sum.number, sum.kind, sum.dtype, sum.numel);
  const std::size_t nbytes = sum.numel * nbytes_of(sum.dtype);
  std::byte* const incoming = work->scratch(nbytes * (ranks.size() - 1)).data();
  std::vector<const void*> sources(ranks.size());
  std::size_t received = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == ranks.rank()) {
      sources[r] = sum.parts[r];
    } else {
      std::byte* const place = incoming + nbytes * received++;
      sources[r] = place;
      work->receive(static_cast<int>(r), place, nbytes);
    }
  }
  // Receives are posted before sends, so that incoming data goes directly to its place.
  for (const int peer : ranks.peers) {
    work->send(peer, sum.parts[static_cast<std::size_t>(peer)], nbytes);
  }
  work->then([sources = std::move(sources), numel = sum.numel, dtype = sum.dtype, out = sum.out,
              options = sum.options] {
    kernels::kernels().reduce({.sources = sources,
                               .destinations = {&out, 1},
                               .numel = numel,
                               .dtype = dtype,
                               .scale = options.scale,
                               .accumulate = options.accumulate});
  });
  return work;
}

}  // namespace acc::collectives
