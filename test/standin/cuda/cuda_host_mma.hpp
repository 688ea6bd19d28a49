// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Host versions of the PTX instructions that move and multiply small matrices in a warp. Fragment
/// layouts follow the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating point type",
/// "ldmatrix", "cp.async"). A register of two 16-bit elements has the first one in its low half.
/// Part of cuda_host.hpp. A kernel's wrapper function calls them where its branch for nvcc has
/// inline assembly.

#include "standin/cuda/emulator.hpp"
#include "standin/settings.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

namespace standin {

template <typename Element>
float element_of(std::uint32_t pair, unsigned which) {
  const auto bits = static_cast<std::uint16_t>(pair >> (16 * which));
  Element element;
  std::memcpy(static_cast<void*>(&element), &bits, sizeof bits);
  return static_cast<float>(element);
}

inline void require_whole_warp(void* const (&lanes)[kWarpSize], const char* name) {
  for (const void* lane : lanes) {
    if (lane == nullptr) {
      die(std::string(name) + " by a warp of which some lanes do not exist");
    }
  }
}

struct Mma16x8x16 {
  std::uint32_t a[4];
  std::uint32_t b[2];
  float c[4];
  float d[4];
};

template <typename Element>
void mma_lanes(void* const (&lanes)[kWarpSize]) {
  require_whole_warp(lanes, "mma.sync");
  float a[16][16];
  float b[16][8];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const auto& mine = *static_cast<const Mma16x8x16*>(lanes[lane]);
    const unsigned group = lane / 4;
    const unsigned pair = lane % 4 * 2;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = group + (i / 2 % 2) * 8;
      const unsigned column = pair + i % 2 + (i / 4) * 8;
      a[row][column] = element_of<Element>(mine.a[i / 2], i % 2);
    }
    for (unsigned i = 0; i < 4; ++i) {
      b[pair + i % 2 + (i / 2) * 8][group] = element_of<Element>(mine.b[i / 2], i % 2);
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& mine = *static_cast<Mma16x8x16*>(lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + (i / 2) * 8;
      const unsigned column = lane % 4 * 2 + i % 2;
      float sum = 0.0F;
      for (unsigned k = 0; k < 16; ++k) {
        sum += a[row][k] * b[k][column];
      }
      mine.d[i] = mine.c[i] + sum;
    }
  }
}

/// mma.sync.aligned.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32: d = a b + c.
/// Element: __nv_bfloat16 or __half. d may be c.
template <typename Element>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  const float (&c)[4],
                  std::source_location where = std::source_location::current()) {
  Mma16x8x16 arguments{};
  std::memcpy(arguments.a, a, sizeof a);
  std::memcpy(arguments.b, b, sizeof b);
  std::memcpy(arguments.c, c, sizeof c);
  warp_operation(0xffffffffU, &mma_lanes<Element>, &arguments, "mma.sync", where);
  std::memcpy(d, arguments.d, sizeof d);
}

template <unsigned kMatrices>
struct LoadMatrix {
  const void* row;  ///< lanes 8 m to 8 m + 7 pass the rows of matrix m
  std::uint32_t registers[kMatrices];
};

template <unsigned kMatrices, bool kTransposed>
void load_matrix_lanes(void* const (&lanes)[kWarpSize]) {
  require_whole_warp(lanes, "ldmatrix");
  using Arguments = LoadMatrix<kMatrices>;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& mine = *static_cast<Arguments*>(lanes[lane]);
    for (unsigned m = 0; m < kMatrices; ++m) {
      std::uint16_t pair[2];
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned row = kTransposed ? lane % 4 * 2 + i : lane / 4;
        const unsigned column = kTransposed ? lane / 4 : lane % 4 * 2 + i;
        const void* start = static_cast<const Arguments*>(lanes[8 * m + row])->row;
        std::memcpy(&pair[i], static_cast<const std::uint16_t*>(start) + column, sizeof pair[i]);
      }
      mine.registers[m] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  }
}

/// ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16. row: where this lane's row of 8 elements
/// starts, aligned to 16 bytes; only the values of the first 8 kMatrices lanes are used.
template <bool kTransposed, unsigned kMatrices>
void load_matrix(std::uint32_t (&registers)[kMatrices], const void* row,
                 std::source_location where = std::source_location::current()) {
  static_assert(kMatrices == 1 || kMatrices == 2 || kMatrices == 4);
  if (current_thread->lane < 8 * kMatrices && reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    die("ldmatrix: a row does not start at a multiple of 16 bytes");
  }
  LoadMatrix<kMatrices> arguments{row, {}};
  warp_operation(0xffffffffU, &load_matrix_lanes<kMatrices, kTransposed>, &arguments, "ldmatrix",
                 where);
  std::memcpy(registers, arguments.registers, sizeof registers);
}

template <unsigned kMatrices>
void ldmatrix(std::uint32_t (&registers)[kMatrices], const void* row,
              std::source_location where = std::source_location::current()) {
  load_matrix<false>(registers, row, where);
}
template <unsigned kMatrices>
void ldmatrix_trans(std::uint32_t (&registers)[kMatrices], const void* row,
                    std::source_location where = std::source_location::current()) {
  load_matrix<true>(registers, row, where);
}

/// cp.async.cg.shared.global of 16 bytes: reads source_nbytes and fills the rest with zeros.
inline void cp_async_16(void* to_shared, const void* from, std::size_t source_nbytes = 16) {
  async_copy(to_shared, from, 16, source_nbytes);
}
/// cp.async.commit_group
inline void cp_async_commit() {
  async_copy_commit();
}
/// cp.async.wait_group
inline void cp_async_wait(std::size_t pending) {
  async_copy_wait(pending);
}

}  // namespace standin
