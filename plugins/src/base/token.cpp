// SPDX-License-Identifier: Apache-2.0
#include "acc/base/token.hpp"

#include "acc/base/error.hpp"

#include <fmt/ranges.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace acc {
namespace {

constexpr std::size_t kBytes = 16;

}  // namespace

std::string random_token() {
  std::array<unsigned char, kBytes> bytes{};
  // getrandom(2) returns requests of up to 256 bytes completely. A signal can interrupt only the
  // wait for the kernel's random number generator at boot (EINTR).
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    if (errno != EINTR) {
      throw Error(Errc::internal, std::string("cannot read random numbers from the kernel: ") +
                                      std::strerror(errno));
    }
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

bool is_token(std::string_view text) noexcept {
  return text.size() == 2 * kBytes &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace acc
