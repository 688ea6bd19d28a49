// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/all_reduce.hpp"

namespace acc::collectives {
namespace {

struct AllReduceRow {
  bool (*suits)(std::size_t ranks, std::size_t numel);
  AllReduceAlgorithm algorithm;
};

/// The first that suits is used.
constexpr AllReduceRow kAllReduces[] = {
    // Two ranks would send as many bytes in two phases as in one.
    {[](std::size_t ranks, std::size_t numel) { return ranks > 2 && numel % ranks == 0; },
     all_reduce_two_phase},
    {[](std::size_t, std::size_t) { return true; }, all_reduce_direct}};

}  // namespace

AllReduceAlgorithm choose_all_reduce(std::size_t ranks, std::size_t numel) {
  const AllReduceRow* row = kAllReduces;
  while (!row->suits(ranks, numel)) {
    ++row;
  }
  return row->algorithm;
}

WorkPtr all_reduce_direct(GlooRanks& ranks, const AllReduce& call) {
  const SentArray sent(call.data, call.numel, call.dtype);
  auto work = sum_parts(ranks, {.number = call.number,
                                .kind = OpKind::all_reduce,
                                .parts = std::vector<void*>(ranks.size(), sent.data()),
                                .numel = call.numel,
                                .dtype = call.dtype,
                                .out = call.data,
                                .options = {.scale = call.scale, .code = call.code},
                                .own_as_sent = true});
  work->keep(sent.owner());
  return work;
}

}  // namespace acc::collectives
