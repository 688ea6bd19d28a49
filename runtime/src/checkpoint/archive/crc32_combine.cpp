#include "checkpoint/archive/crc32_combine.hpp"

#include <array>

namespace acc::checkpoint::archive {
namespace {

/// The polynomial, reflected: bit 31 is x^0.
constexpr std::uint32_t kPolynomial = 0xedb88320, kOne = 0x80000000;

/// a * b modulo the polynomial.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) {
      product ^= b;
    }
    b = (b & 1) != 0 ? b >> 1 ^ kPolynomial : b >> 1;
  }
  return product;
}

/// x^(8 * 2^i): what 2^i further bytes do to a CRC.
constexpr std::array<std::uint32_t, 64> kBytes = [] {
  std::array<std::uint32_t, 64> powers{};
  std::uint32_t power = kOne >> 8;
  for (auto& entry : powers) {
    entry = power;
    power = multiply(power, power);
  }
  return powers;
}();

}  // namespace

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_nbytes) noexcept {
  for (std::size_t i = 0; second_nbytes != 0 && first != 0; ++i, second_nbytes >>= 1) {
    if ((second_nbytes & 1) != 0) {
      first = multiply(kBytes[i], first);
    }
  }
  return first ^ second;
}

}  // namespace acc::checkpoint::archive
