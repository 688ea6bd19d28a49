// SPDX-License-Identifier: Apache-2.0
#include "standin/nccl/collective.hpp"

#include "standin/cuda/standin.hpp"

#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace standin::nccl {
namespace {

float load(const std::byte* from, int dtype) {
  if (dtype == ncclFloat32) {
    float value = 0.0F;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  if (dtype == ncclFloat16) {
    return __half2float(std::bit_cast<__half>(half));
  }
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

void store(std::byte* to, int dtype, float value) {
  if (dtype == ncclFloat32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  if (dtype == ncclFloat16) {
    const __half half = __float2half_rn(value);
    std::memcpy(to, &half, sizeof(half));
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto half = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1U)) >> 16);
  std::memcpy(to, &half, sizeof(half));
}

}  // namespace

std::size_t nbytes_of(int dtype) {
  switch (dtype) {
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclFloat32: return 4;
    case ncclFloat64: return 8;
    default: die("data type " + std::to_string(dtype) + " is not emulated");
  }
}

bool Collective::step() {
  if (shared_->aborted) {
    return true;
  }
  if (shared_->failed || !all_came() || !exchange_chunks()) {
    return false;
  }
  ++shared_->done;
  return true;
}

bool Collective::all_came() {
  RankPlace& own = shared_->place(shared_->rank);
  if (!posted_) {
    own.calls[number_ % own.calls.size()] = call_;
    own.posted = number_;
    posted_ = true;
  }
  for (int r = 0; r < shared_->size; ++r) {
    if (shared_->place(r).posted < number_) {
      return false;
    }
  }
  if (!filled_ && begin_ == 0) {
    check_same_call();
  }
  return true;
}

void Collective::check_same_call() const {
  for (int r = 0; r < shared_->size; ++r) {
    const Call& theirs = shared_->place(r).calls[number_ % 2];
    if (theirs != call_) {
      die("collective " + std::to_string(number_) + ": rank " + std::to_string(shared_->rank) +
          " calls " + to_string(call_) + ", rank " + std::to_string(r) + " calls " +
          to_string(theirs));
    }
  }
}

std::size_t Collective::width() const {
  return nbytes_of(call_.dtype);
}

/// Number of elements of one rank's part in a chunk.
std::size_t Collective::piece() const {
  const auto parts = call_.kind == Kind::reduce_scatter ? shared_->size : 1;
  return kStageNbytes / static_cast<std::size_t>(parts) / width();
}

bool Collective::exchange_chunks() {
  RankPlace& own = shared_->place(shared_->rank);
  const auto all_reached = [this](std::atomic<std::uint64_t> RankPlace::*counter,
                                  std::uint64_t target) {
    for (int r = 0; r < shared_->size; ++r) {
      if (shared_->place(r).*counter < target) {
        return false;
      }
    }
    return true;
  };
  do {  // at least one chunk, so that no rank gets ahead by more than one collective
    const std::size_t length = std::min<std::size_t>(piece(), call_.count - begin_);
    if (!filled_) {
      if (!all_reached(&RankPlace::read, shared_->chunks)) {
        return false;
      }
      fill(begin_, length);
      own.written = ++shared_->chunks;
      filled_ = true;
    }
    if (!all_reached(&RankPlace::written, shared_->chunks)) {
      return false;
    }
    drain(begin_, length);
    own.read = shared_->chunks;
    filled_ = false;
    begin_ += length;
  } while (begin_ < call_.count);
  return true;
}

void Collective::fill(std::size_t begin, std::size_t length) const {
  std::byte* const stage = shared_->place(shared_->rank).stage.data();
  const auto* const from = static_cast<const std::byte*>(send_);
  const std::size_t parts =
      call_.kind == Kind::reduce_scatter ? static_cast<std::size_t>(shared_->size) : 1;
  if (call_.kind == Kind::broadcast && shared_->rank != call_.root) {
    return;
  }
  for (std::size_t part = 0; part < parts; ++part) {
    const std::byte* const source = from + (part * call_.count + begin) * width();
    check_range(source, length * width(), "the input of an NCCL collective");
    std::memcpy(stage + part * length * width(), source, length * width());
  }
}

void Collective::drain(std::size_t begin, std::size_t length) const {
  auto* const to = static_cast<std::byte*>(receive_) + begin * width();
  std::array<const std::byte*, kMaxRanks> stages{};
  for (int r = 0; r < shared_->size; ++r) {
    const std::size_t part = call_.kind == Kind::reduce_scatter
                                 ? static_cast<std::size_t>(shared_->rank) * length * width()
                                 : 0;
    stages[static_cast<std::size_t>(r)] = shared_->place(r).stage.data() + part;
  }
  const auto put = [&](std::byte* place, const std::byte* stage) {
    check_range(place, length * width(), "the output of an NCCL collective");
    std::memcpy(place, stage, length * width());
  };
  if (call_.kind == Kind::all_gather) {
    for (std::size_t r = 0; r < static_cast<std::size_t>(shared_->size); ++r) {
      put(to + r * call_.count * width(), stages[r]);
    }
  } else if (call_.kind == Kind::broadcast) {
    put(to, stages[static_cast<std::size_t>(call_.root)]);
  } else {
    check_range(to, length * width(), "the output of an NCCL collective");
    reduce(stages.data(), to, length);
  }
}

/// Sums in rank order, float64 as such and others in float32, rounded once at the end.
void Collective::reduce(const std::byte* const* sources, std::byte* to, std::size_t length) const {
  if (call_.op != ncclSum) {
    die("reduction " + std::to_string(call_.op) + " is not emulated");
  }
  if (call_.dtype == ncclFloat64) {
    for (std::size_t i = 0; i < length; ++i) {
      double sum = 0.0;
      for (int r = 0; r < shared_->size; ++r) {
        double value = 0.0;
        std::memcpy(&value, sources[r] + i * width(), sizeof(value));
        sum += value;
      }
      std::memcpy(to + i * width(), &sum, sizeof(sum));
    }
    return;
  }
  for (std::size_t i = 0; i < length; ++i) {
    float sum = 0.0F;
    for (int r = 0; r < shared_->size; ++r) {
      sum += load(sources[r] + i * width(), call_.dtype);
    }
    store(to + i * width(), call_.dtype, sum);
  }
}

}  // namespace standin::nccl
