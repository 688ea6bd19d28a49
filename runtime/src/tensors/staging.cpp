// SPDX-License-Identifier: Apache-2.0
#include "tensors/staging.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cstring>

namespace acc::tensors {
namespace {

using collectives::ShmChannel;

static_assert(sizeof(Call) <= Staging::kHeader);

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 9> kNames = {"barrier",        "all_reduce", "reduce",
                                                      "reduce_scatter", "broadcast",  "all_gather",
                                                      "gather",         "scatter",    "all_to_all"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "an unknown call";  // a peer may write any value
}

bool has_op(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather ||
         kind == Kind::scatter;
}

/// Such as "all_reduce (sum) of 8 x float32".
std::string text_of(const Call& call) {
  std::string text(name_of(call.kind));
  if (has_op(call.kind)) {
    text += fmt::format(" ({})", to_string(call.op));
  }
  if (call.kind == Kind::barrier || call.kind == Kind::all_to_all) {
    return text;
  }
  text += has_op(call.kind) ? fmt::format(" of {} x {}", call.count, to_string(call.element))
                            : fmt::format(" of {} bytes", call.count);
  if (has_root(call.kind)) {
    text += fmt::format(" with root {}", call.root);
  }
  return text;
}

}  // namespace

std::string Staging::describe() const {
  return fmt::format("acc[{}]", fmt::join(channel_.spec().ranks, ","));
}

std::string Staging::name() const {
  return fmt::format("{}, number {} of {}", text_of(call_), call_.number, describe());
}

void Staging::begin(Call call) {
  channel_.throw_if_aborted();
  call_ = call;
  call_.number = ++calls_ + call_.refused;
}

std::byte* Staging::next_piece() {
  std::byte* const chunk = next([this] { return name(); });
  std::memcpy(chunk, &call_, sizeof call_);
  return chunk + kHeader;
}

const std::byte* Staging::piece_of(int rank) {
  if (rank != channel_.rank()) {
    await(rank, [this] { return name(); });
    if (!call_.agrees_with(call_of(rank))) {
      fail_different();
    }
  }
  return of(rank) + kHeader;
}

void Staging::post_sum() {
  ShmChannel::advance(channel_.own().posted, ++sums_);
}

void Staging::await_sum(int rank) {
  channel_.wait(channel_.control(rank).posted, sums_, rank, [this] { return name(); });
}

Call Staging::call_of(int rank) const {
  Call call;  // a copy: a faulty peer may change it at any time
  std::memcpy(&call, of(rank), sizeof call);
  return call;
}

void Staging::fail_different() {
  constexpr std::chrono::milliseconds kLimit{500};
  channel_.fail_different(call_.number, describe(), &collectives::RankControl::chunk_posted,
                          number_, kLimit, [this](int r) {
                            const Call call = call_of(r);
                            std::string text = text_of(call);
                            if (call.number != call_.number) {
                              text += fmt::format(" as number {}", call.number);
                            }
                            if (call.refused != 0) {
                              text +=
                                  fmt::format(", having refused {} before because of {} arguments",
                                              call.refused, call.refused == 1 ? "its" : "their");
                            }
                            return text;
                          });
}

void Staging::fail(const std::string& reason, int at_fault_rank) {
  channel_.fail(fmt::format("{}: {}", name(), reason), channel_.global_rank(at_fault_rank));
}

}  // namespace acc::tensors
