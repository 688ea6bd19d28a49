// SPDX-License-Identifier: Apache-2.0
#include "tensors/staging.hpp"

#include "acc/base/error.hpp"
#include "collectives/call_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

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
  ++chunk_;
  for (int r = 0; r < channel_.size() && chunk_ > 2; ++r) {
    channel_.wait(channel_.control(r).chunk_finished, chunk_ - 2, r, [this] { return name(); });
  }
  std::byte* const stage = channel_.staging(channel_.rank(), chunk_ % 2);
  std::memcpy(stage, &call_, sizeof call_);
  return stage + kHeader;
}

void Staging::post() {
  ShmChannel::advance(channel_.own().chunk_posted, chunk_);
}

const std::byte* Staging::piece_of(int rank) {
  if (rank != channel_.rank()) {
    channel_.wait(channel_.control(rank).chunk_posted, chunk_, rank, [this] { return name(); });
    if (!call_.agrees_with(call_of(rank))) {
      fail_different();
    }
  }
  return channel_.staging(rank, chunk_ % 2) + kHeader;
}

void Staging::post_sum() {
  ShmChannel::advance(channel_.own().posted, ++sums_);
}

void Staging::await_sum(int rank) {
  channel_.wait(channel_.control(rank).posted, sums_, rank, [this] { return name(); });
}

void Staging::finish() {
  ShmChannel::advance(channel_.own().chunk_finished, chunk_);
}

Call Staging::call_of(int rank) const {
  Call call;  // a copy: a faulty peer may change it at any time
  std::memcpy(&call, channel_.staging(rank, chunk_ % 2), sizeof call);
  return call;
}

/// Waits shortly for the calls of the other ranks, which decide which rank is at fault.
void Staging::fail_different() {
  const auto posted = [this](int r) {
    return ShmChannel::reached(channel_.control(r).chunk_posted, chunk_);
  };
  const auto all_posted = [&] {
    for (int r = 0; r < channel_.size(); ++r) {
      if (!posted(r)) {
        return false;
      }
    }
    return true;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (!all_posted() && !channel_.failure() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::map<std::string, std::vector<int>> ranks_by_call;
  for (int r = 0; r < channel_.size(); ++r) {
    if (posted(r)) {
      const Call call = call_of(r);
      std::string number =
          call.number == call_.number ? "" : fmt::format(" as number {}", call.number);
      if (call.refused != 0) {
        number += fmt::format(", having refused {} before because of {} arguments", call.refused,
                              call.refused == 1 ? "its" : "their");
      }
      ranks_by_call[text_of(call) + number].push_back(channel_.global_rank(r));
    }
  }
  const auto difference = collectives::call_difference(call_.number, describe(), ranks_by_call);
  channel_.fail(difference.reason, difference.at_fault);
}

void Staging::fail(const std::string& reason, int at_fault_rank) {
  channel_.fail(fmt::format("{}: {}", name(), reason), channel_.global_rank(at_fault_rank));
}

}  // namespace acc::tensors
