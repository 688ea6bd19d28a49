// SPDX-License-Identifier: Apache-2.0
#include "kernels/stream_copy.hpp"

#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace acc::kernels {

void stream_copy(void* to, const void* from, std::size_t nbytes) noexcept {
#ifdef __x86_64__
  constexpr std::size_t kLeast = 4096;
  constexpr std::size_t kLine = 64;
  if (nbytes >= kLeast) {
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
    std::memcpy(target, source, head);
    const std::size_t end = head + (nbytes - head) / kLine * kLine;
    for (std::size_t at = head; at < end; at += kLine) {
      const auto* const read = reinterpret_cast<const __m128i*>(source + at);
      auto* const write = reinterpret_cast<__m128i*>(target + at);
      const __m128i first = _mm_loadu_si128(read);
      const __m128i second = _mm_loadu_si128(read + 1);
      const __m128i third = _mm_loadu_si128(read + 2);
      const __m128i fourth = _mm_loadu_si128(read + 3);
      _mm_stream_si128(write, first);
      _mm_stream_si128(write + 1, second);
      _mm_stream_si128(write + 2, third);
      _mm_stream_si128(write + 3, fourth);
    }
    _mm_sfence();  // later stores, such as that of a counter, come after these
    to = target + end;
    from = source + end;
    nbytes -= end;
  }
#endif
  if (nbytes != 0) {
    std::memcpy(to, from, nbytes);
  }
}

}  // namespace acc::kernels
