// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/exchange.hpp"

#include "kernels/kernels.hpp"

#include <fmt/ranges.h>

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
  return std::make_shared<Exchange>(*this, call + " in " + describe(), tag);
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

std::shared_ptr<Exchange> sum_parts(GlooRanks& ranks, const RankSum& sum) {
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
