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
  /// Decade d begins with the values that are at least begins[d], halfway to the magnitude below.
  /// With the number n of decades whose begin a value x has reached, the number of the closest
  /// magnitude is x * factors[n] + offsets[n], rounded down, but at most lasts[n].
  float begins[kDecades] = {};
  float factors[kDecades + 1] = {};
  float offsets[kDecades + 1] = {};
  float lasts[kDecades + 1] = {};
  float top = 0.0F;  ///< from here on a value is 1

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
    top = static_cast<float>((below + 1.0) / 2.0);
  }
};

template <bool kSigned>
inline constexpr Magnitudes<kSigned> kMagnitudes;

/// The magnitude of the lowest number, code 0 among those with a sign.
inline constexpr float kLowestMagnitude =
    kMagnitudes<true>.bases[6] + kMagnitudes<true>.steps[6] * (63.0F / 64.0F);

}  // namespace acc::kernels
