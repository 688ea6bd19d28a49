// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Device functions that the threads of a block or a warp call together. Part of cuda_host.hpp.

#include "standin/cuda/emulator.hpp"

#include <cstring>
#include <source_location>
#include <type_traits>

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  standin::block_barrier(where);
}

inline void __syncwarp(unsigned mask = 0xffffffffU,
                       std::source_location where = std::source_location::current()) {
  standin::warp_operation(
      mask, [](void* const(&)[standin::kWarpSize]) {}, nullptr, "__syncwarp", where);
}

namespace standin {

template <typename T>
struct Shuffle {
  T value;
  unsigned source;  ///< lane
  T result;
};

/// Lanes that have ended or are not in the mask give NaNs, because their value is undefined.
template <typename T>
void shuffle_lanes(void* const (&lanes)[kWarpSize]) {
  for (void* lane : lanes) {
    if (lane != nullptr) {
      auto& mine = *static_cast<Shuffle<T>*>(lane);
      const auto* from = static_cast<const Shuffle<T>*>(lanes[mine.source]);
      if (from != nullptr) {
        mine.result = from->value;
      } else {
        std::memset(static_cast<void*>(&mine.result), 0xff, sizeof(T));
      }
    }
  }
}

template <typename T>
T shuffle(unsigned mask, T value, unsigned source, const char* name, std::source_location where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  Shuffle<T> arguments{value, source, value};
  warp_operation(mask, &shuffle_lanes<T>, &arguments, name, where);
  return arguments.result;
}

/// First and last lane of the segment of `width` lanes that contains this lane.
inline unsigned first_lane(int width) {
  return current_thread->lane & ~(static_cast<unsigned>(width) - 1);
}
inline unsigned last_lane(int width) {
  return first_lane(width) + static_cast<unsigned>(width) - 1;
}

/// State of a vote: the value of each lane, and the result that all lanes get.
struct Vote {
  unsigned value;
  unsigned result;
};

template <typename Combine>
void vote_lanes(void* const (&lanes)[kWarpSize], unsigned first, Combine&& combine) {
  unsigned result = first;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (lanes[lane] != nullptr) {
      result = combine(result, static_cast<const Vote*>(lanes[lane])->value, lane);
    }
  }
  for (void* lane : lanes) {
    if (lane != nullptr) {
      static_cast<Vote*>(lane)->result = result;
    }
  }
}

inline unsigned vote(unsigned mask, unsigned value, WarpOperation operation, const char* name,
                     std::source_location where) {
  Vote arguments{value, 0};
  warp_operation(mask, operation, &arguments, name, where);
  return arguments.result;
}

}  // namespace standin

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  const unsigned offset = static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1);
  return standin::shuffle(mask, value, standin::first_lane(width) + offset, "__shfl_sync", where);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const unsigned lane = standin::current_thread->lane;
  const unsigned source = lane ^ static_cast<unsigned>(bits);
  return standin::shuffle(mask, value, source <= standin::last_lane(width) ? source : lane,
                          "__shfl_xor_sync", where);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const unsigned lane = standin::current_thread->lane;
  const unsigned source = lane + delta;
  return standin::shuffle(mask, value, source <= standin::last_lane(width) ? source : lane,
                          "__shfl_down_sync", where);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const unsigned lane = standin::current_thread->lane;
  const bool inside = lane >= standin::first_lane(width) + delta;
  return standin::shuffle(mask, value, inside ? lane - delta : lane, "__shfl_up_sync", where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  constexpr standin::WarpOperation kBallot = [](void* const(&lanes)[standin::kWarpSize]) {
    standin::vote_lanes(
        lanes, 0, [](unsigned all, unsigned mine, unsigned lane) { return all | mine << lane; });
  };
  return standin::vote(mask, predicate != 0 ? 1 : 0, kBallot, "__ballot_sync", where);
}

inline int __any_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  constexpr standin::WarpOperation kAny = [](void* const(&lanes)[standin::kWarpSize]) {
    standin::vote_lanes(lanes, 0, [](unsigned all, unsigned mine, unsigned) { return all | mine; });
  };
  return static_cast<int>(standin::vote(mask, predicate != 0 ? 1 : 0, kAny, "__any_sync", where));
}

inline int __all_sync(unsigned mask, int predicate,
                      std::source_location where = std::source_location::current()) {
  constexpr standin::WarpOperation kAll = [](void* const(&lanes)[standin::kWarpSize]) {
    standin::vote_lanes(lanes, 1, [](unsigned all, unsigned mine, unsigned) { return all & mine; });
  };
  return static_cast<int>(standin::vote(mask, predicate != 0 ? 1 : 0, kAll, "__all_sync", where));
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value,
                                  std::source_location where = std::source_location::current()) {
  constexpr standin::WarpOperation kAdd = [](void* const(&lanes)[standin::kWarpSize]) {
    standin::vote_lanes(lanes, 0, [](unsigned all, unsigned mine, unsigned) { return all + mine; });
  };
  return standin::vote(mask, value, kAdd, "__reduce_add_sync", where);
}
inline int __reduce_add_sync(unsigned mask, int value,
                             std::source_location where = std::source_location::current()) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), where));
}
