// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/initializer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

// Initialisers with counter-based random numbers: element i of a stream is a function of (stream,
// i), so a rank computes any range without the elements before it, and the values do not depend on
// how parameters are sharded. Compiled with the flags of the kernels (runtime/CMakeLists.txt):
// plain loops over a batch that the compiler vectorises, without contraction to fused multiply-add,
// so that every machine draws the same numbers. Logarithm, sine and cosine are defined here: loops
// with them vectorise, and the values do not depend on the version of the C library.
namespace acc {
namespace {

// A batch consists of kBlocks Philox blocks of 4 words each. It is stored word-major, so that the
// innermost loops run over blocks and vectorise.
constexpr std::size_t kBlocks = 32;
constexpr std::size_t kWords = 4;
constexpr std::size_t kBatch = kBlocks * kWords;
using Words = std::array<std::array<std::uint32_t, kBlocks>, kWords>;

// Compiles a loop over a batch for several instruction sets; the program loader selects one. All
// give the same bits. The function that selects runs too early for the thread sanitizer.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define ACC_EACH_VECTOR_SIZE [[gnu::target_clones("default", "avx2", "avx512f")]]
#else
#define ACC_EACH_VECTOR_SIZE
#endif

// Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
// The key is the stream, the counter is the number of the block.
ACC_EACH_VECTOR_SIZE void philox(std::uint64_t stream, std::uint64_t first_block,
                                 Words& x) noexcept {
  for (std::size_t b = 0; b < kBlocks; ++b) {
    const std::uint64_t block = first_block + b;
    x[0][b] = static_cast<std::uint32_t>(block);
    x[1][b] = static_cast<std::uint32_t>(block >> 32);
    x[2][b] = 0;
    x[3][b] = 0;
  }
  auto key0 = static_cast<std::uint32_t>(stream);
  auto key1 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x[0][b];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x[2][b];
      x[0][b] = static_cast<std::uint32_t>(product1 >> 32) ^ x[1][b] ^ key0;
      x[1][b] = static_cast<std::uint32_t>(product1);
      x[2][b] = static_cast<std::uint32_t>(product0 >> 32) ^ x[3][b] ^ key1;
      x[3][b] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

// ln(x) for normal x > 0, to about 1e-7: x = 2^e * m with m in [sqrt(1/2), sqrt(2)), then
// ln(m) = 2 artanh((m - 1) / (m + 1)) by its series.
inline float natural_log(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t shifted = bits - 0x3f3504f3U;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const auto mantissa = std::bit_cast<float>((shifted & 0x007fffffU) + 0x3f3504f3U);
  const float s = (mantissa - 1.0F) / (mantissa + 1.0F);
  const float z = s * s;
  const float series = 1.0F + z * (1.0F / 3 + z * (1.0F / 5 + z * (1.0F / 7 + z * (1.0F / 9))));
  return exponent * 0.69314718F + 2.0F * s * series;
}

struct SineCosine {
  float sine, cosine;
};

// Sine and cosine of 2 pi * word / 2^32: the nearest quarter turn, and Taylor series for the rest
// of at most an eighth of a turn.
inline SineCosine of_turn(std::uint32_t word) noexcept {
  const std::uint32_t quarter = (word + 0x20000000U) >> 30;
  const auto rest = static_cast<float>(static_cast<std::int32_t>(word - (quarter << 30)));
  const float a = rest * 1.4629180e-9F;  // 2 pi / 2^32
  const float z = a * a;
  const float sine =
      a * (1.0F + z * (-1.0F / 6 + z * (1.0F / 120 + z * (-1.0F / 5040 + z * (1.0F / 362880)))));
  const float cosine =
      1.0F + z * (-0.5F + z * (1.0F / 24 + z * (-1.0F / 720 + z * (1.0F / 40320))));
  const bool swapped = (quarter & 1U) != 0;
  const float s = swapped ? cosine : sine;
  const float c = swapped ? sine : cosine;
  return {(quarter & 2U) != 0 ? -s : s, ((quarter + 1U) & 2U) != 0 ? -c : c};
}

// Maps a word to (0, 1]; 0 would have no logarithm. AVX2 has a vector instruction for the
// conversion of signed integers only, so one bit is dropped.
inline float open_unit(std::uint32_t word) noexcept {
  const auto centered = static_cast<float>(static_cast<std::int32_t>(word >> 1));
  return (centered + 0.5F) * 0x1p-31F;
}

// Box-Muller transform: words 0 and 1 of a block give its elements 0 and 1, words 2 and 3 the other
// two.
ACC_EACH_VECTOR_SIZE void normal_batch(const Words& x, float stddev, float* out) noexcept {
  std::array<std::array<float, kBlocks>, kWords> z;
  for (std::size_t pair = 0; pair < kWords; pair += 2) {
    for (std::size_t b = 0; b < kBlocks; ++b) {
      const float radius = stddev * std::sqrt(-2.0F * natural_log(open_unit(x[pair][b])));
      const SineCosine turn = of_turn(x[pair + 1][b]);
      z[pair][b] = radius * turn.cosine;
      z[pair + 1][b] = radius * turn.sine;
    }
  }
  for (std::size_t b = 0; b < kBlocks; ++b) {
    for (std::size_t w = 0; w < kWords; ++w) {
      out[b * kWords + w] = z[w][b];
    }
  }
}

// Uses the upper 24 bits of each word. The product may round up to `high`, which is excluded.
ACC_EACH_VECTOR_SIZE void uniform_batch(const Words& x, float low, float high,
                                        float* out) noexcept {
  const float below_high = std::nextafter(high, low);
  for (std::size_t b = 0; b < kBlocks; ++b) {
    for (std::size_t w = 0; w < kWords; ++w) {
      const auto unit = static_cast<float>(static_cast<std::int32_t>(x[w][b] >> 8)) * 0x1p-24F;
      const float value = low + (high - low) * unit;
      out[b * kWords + w] = value < high ? value : below_high;
    }
  }
}

// Fills elements [offset, offset + out.size()). Draws whole batches that start at multiples of
// kBatch; the two ends of the range go through a buffer.
template <typename Batch>
void fill(std::uint64_t stream, std::int64_t offset, std::span<float> out, const Batch& batch) {
  auto position = static_cast<std::uint64_t>(offset);
  Words words;
  std::array<float, kBatch> buffer;
  while (!out.empty()) {
    const std::size_t skip = position % kBatch;
    const std::size_t count = std::min(out.size(), kBatch - skip);
    philox(stream, (position - skip) / kWords, words);
    if (count == kBatch) {
      batch(words, out.data());
    } else {
      batch(words, buffer.data());
      std::copy_n(buffer.begin() + skip, count, out.begin());
    }
    position += count;
    out = out.subspan(count);
  }
}

}  // namespace

Initializer constant(float value) {
  return Initializer::pure([value](std::uint64_t, std::int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), value);
  });
}

Initializer zeros() {
  return constant(0.0F);
}

Initializer ones() {
  return constant(1.0F);
}

Initializer normal(float stddev) {
  return Initializer::pure(
      [stddev](std::uint64_t stream, std::int64_t offset, std::span<float> out) {
        fill(stream, offset, out,
             [stddev](const Words& words, float* to) { normal_batch(words, stddev, to); });
      });
}

Initializer uniform(float low, float high) {
  return Initializer::pure(
      [low, high](std::uint64_t stream, std::int64_t offset, std::span<float> out) {
        fill(stream, offset, out,
             [low, high](const Words& words, float* to) { uniform_batch(words, low, high, to); });
      });
}

}  // namespace acc
