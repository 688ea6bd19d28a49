// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The 256 numbers of bitsandbytes' create_dynamic_map, in rising order. Magnitudes have seven
/// decades up to 1; the one from 10^(d-7) to 10^(d-6) has 2^d magnitudes with a sign, or 2^(d+1)
/// without, at equal distances. Added are 0 and 1. Compiled for each kind of CPU, so without calls.
namespace acc::kernels {

inline constexpr int kDecades = 7;
/// The code of 0 among numbers with a sign.
inline constexpr int kZeroCode = 127;

/// The magnitudes are numbered from 0, which is 0, to `kLast`, which is 1.
template <bool kSigned>
struct Magnitudes {
  static constexpr int kLast = kSigned ? 128 : 255;
  /// Added to the number of a magnitude, so that the first of decade d is a power of two: 2^d, or
  /// 2^(d+1) without a sign.
  static constexpr int kShift = kSigned ? 0 : 1;

  /// A magnitude is bases[d] + steps[d] * f with the decade d of its number, and the fraction f of
  /// the shifted number beyond the power of two. 1 is in decade 7.
  float bases[kDecades + 1] = {};
  float steps[kDecades + 1] = {};
  /// Decade d begins with the values that are at least begins[d], halfway to the magnitude below;
  /// from begins[7] on a value is 1.
  /// With the number n of decades whose begin a value x has reached, the number of the closest
  /// magnitude is x * factors[n] + offsets[n], rounded down, but at most lasts[n].
  float begins[kDecades + 1] = {};
  float factors[kDecades + 1] = {};
  float offsets[kDecades + 1] = {};
  float lasts[kDecades + 1] = {};

  /// The same with tables of 8 floats, for x from kLeast to below 2. n is counted on to 8, from
  /// begins[7] on. The number is 2^n * (p + shares[r]), rounded down, with r = n modulo 8 and
  /// p = x * powers[r], but at most kMost. With a sign, all shares are equal.
  static constexpr float kLeast = 0x1p-24F;
  static constexpr float kUnit = kSigned ? 0.5F : 1.0F;
  static constexpr float kMost = kUnit * (10.0F / 9.0F - 0x1p-10F);
  float powers[kDecades + 1] = {};
  float shares[kDecades + 1] = {};
  /// n, or n - 1 of some x, by the upper 8 bits of x modulo 16, which two exponents share. At most
  /// one begin lies among their numbers. least[0] is 0, so that bytes of zeros stay zeros.
  unsigned char least[16] = {};

  /// Factors, offsets and lasts by an exponent, from -31 to 0, modulo 32: that of the bits of x
  /// plus `advances` of the exponent of x. At most one decade begins among the numbers of one
  /// exponent, and its numbers advance to the next one. Exponent 0 is that of the value 1.
  static constexpr int kExponents = 32;
  int advances[kExponents] = {};
  float factors_by_exponent[kExponents] = {};
  float offsets_by_exponent[kExponents] = {};
  float lasts_by_exponent[kExponents] = {};

  /// bases and steps by d + 7 + kShift modulo 8, which is so the exponent of the shifted number, in
  /// the format of float32, modulo 8.
  float bases_by_exponent[2 * (kDecades + 1)] = {};
  float steps_by_exponent[2 * (kDecades + 1)] = {};

  constexpr Magnitudes() {
    double scale = 1e-6;
    double below = 0.0;
    for (int d = 0; d < kDecades; ++d) {
      const int count = (kSigned ? 1 : 2) << d;
      const int first = count - kShift;
      const double begin = scale * (0.1 + 0.45 / count);
      bases[d] = static_cast<float>(begin);
      steps[d] = static_cast<float>(0.9 * scale);
      begins[d] = static_cast<float>((below + begin) / 2.0);
      factors[d + 1] = static_cast<float>(count / (0.9 * scale));
      offsets[d + 1] = static_cast<float>(first - count / 9.0);
      lasts[d + 1] = static_cast<float>(first + count - 1);
      below = scale * (1.0 - 0.45 / count);
      scale = d + 2 == kDecades ? 1.0 : scale * 10.0;
    }
    bases[kDecades] = 1.0F;
    begins[kDecades] = static_cast<float>((below + 1.0) / 2.0);
    for (int n = 0; n <= kDecades; ++n) {
      const auto size = static_cast<float>(1 << n);
      // Those of 0 and 8: below 1 for small x, and at least kUnit from begins[7] on.
      powers[n] = n > 0 ? factors[n] / size : kUnit * 0.1118F;
      shares[n] = n > 0 ? offsets[n] / size : kUnit * (8.0F / 9.0F);
    }
    for (int i = 3; i < 16; ++i) {  // from kLeast on
      const float low = __builtin_bit_cast(float, (0x30 + i) << 24);
      for (const float begin : begins) {
        if (begin <= low) {
          ++least[i];
        }
      }
    }
    for (int i = 0; i < 2 * (kDecades + 1); ++i) {
      bases_by_exponent[i] = bases[(i + 1 - kShift) & kDecades];
      steps_by_exponent[i] = steps[(i + 1 - kShift) & kDecades];
    }
    float low = 1.0F / (1U << (kExponents - 1));
    for (int i = 0; i < kExponents; ++i, low *= 2.0F) {
      // Exponent -31 is 96 in the format of float32, a multiple of 32.
      int reached = 0;
      for (int d = 0; d <= kDecades; ++d) {
        const float begin = begins[d];
        reached += begin <= low && d < kDecades ? 1 : 0;
        if (begin > low && begin < 2.0F * low) {
          advances[i] = __builtin_bit_cast(int, 2.0F * low) - __builtin_bit_cast(int, begin);
        }
      }
      factors_by_exponent[i] = factors[reached];
      offsets_by_exponent[i] = offsets[reached];
      lasts_by_exponent[i] = lasts[reached];
    }
    factors_by_exponent[kExponents - 1] = 0.0F;
    offsets_by_exponent[kExponents - 1] = kLast;
    lasts_by_exponent[kExponents - 1] = kLast;
  }
};

template <bool kSigned>
inline constexpr Magnitudes<kSigned> kMagnitudes;

/// The magnitude of the lowest number, code 0 among those with a sign.
inline constexpr float kLowestMagnitude =
    kMagnitudes<true>.bases[6] + kMagnitudes<true>.steps[6] * (63.0F / 64.0F);

/// Returns one of two numbers, without a branch, which could not be predicted.
__attribute__((always_inline)) inline float chosen(bool first, float a, float b) noexcept {
  const unsigned mask = first ? ~0U : 0U;
  return __builtin_bit_cast(
      float, (__builtin_bit_cast(unsigned, a) & mask) | (__builtin_bit_cast(unsigned, b) & ~mask));
}

/// The smallest scale of which `value` is the lowest number; `value` if it is 0, infinite or NaN.
/// It differs from the rounded quotient by at most one unit in the last place.
__attribute__((always_inline)) inline float scale_of_lowest(float value) noexcept {
  const bool has_scale = value > 0.0F && value < __builtin_inff();
  const float magnitude = chosen(has_scale, value, 1.0F);  // of 0, numbers below would be subnormal
  const unsigned quotient = __builtin_bit_cast(unsigned, magnitude / kLowestMagnitude);
  const unsigned first = quotient - (quotient < 2U ? quotient : 2U);
  unsigned below = 0;
  for (unsigned i = 0; i < 4; ++i) {
    below += __builtin_bit_cast(float, first + i) * kLowestMagnitude < magnitude ? 1U : 0U;
  }
  return chosen(has_scale, __builtin_bit_cast(float, first + below), value);
}

/// The scale of a block: see scale_of in packed_states.hpp. The highest number is 1 times the
/// scale. The lowest is not -1, so that a block whose largest magnitude is that of a negative
/// number does not contain it. Several scales may give the same lowest number; the smallest of them
/// is taken.
__attribute__((always_inline)) inline float scale_of_extremes(float highest,
                                                              float lowest) noexcept {
  return chosen(lowest > highest, scale_of_lowest(lowest * kLowestMagnitude), highest);
}

}  // namespace acc::kernels
