// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

/// Helpers of the fuzz targets. A target defines LLVMFuzzerTestOneInput. It is linked with
/// libFuzzer, or with replay.cpp, which runs files.
namespace acc::fuzz {

/// Parses a fuzzer's input. After its end, numbers are 0 and strings short.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : bytes_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }

  std::string_view take(std::size_t count) {
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return take(bytes_.size()); }
  std::uint8_t byte() {
    const std::string_view taken = take(1);
    return taken.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(taken.front());
  }
  std::uint16_t two_bytes() {
    const unsigned low = byte();
    return static_cast<std::uint16_t>(low | unsigned{byte()} << 8);
  }
  /// 0 ... count - 1
  int below(int count) { return byte() % count; }

 private:
  std::string_view bytes_;
};

/// Splits bytes into pieces of eight lengths, used in turn; length 0 means all remaining bytes.
class Cuts {
 public:
  explicit Cuts(Input& input) : lengths_(input.take(8)) {}

  std::string_view take_piece(std::string_view& bytes) {
    std::size_t length = bytes.size();
    if (!lengths_.empty() && lengths_[next_ % lengths_.size()] != 0) {
      length = static_cast<unsigned char>(lengths_[next_ % lengths_.size()]);
    }
    ++next_;
    const std::string_view piece = bytes.substr(0, length);
    bytes.remove_prefix(piece.size());
    return piece;
  }

 private:
  std::string_view lengths_;
  std::size_t next_ = 0;
};

/// Bytes that were received but not consumed, as a Connection keeps them. They are in a buffer of
/// exactly that size, at a new address each time, so that a sanitizer detects reads beyond it and
/// references into an old buffer.
class Unread {
 public:
  /// Appends `bytes` and calls `step(rest)`, which consumes bytes of `rest`, until it returns
  /// false.
  template <typename Step>
  void feed(std::string_view bytes, Step step) {
    std::vector<char> all;
    all.reserve(rest_.size() + bytes.size());
    all.insert(all.end(), rest_.begin(), rest_.end());
    all.insert(all.end(), bytes.begin(), bytes.end());
    std::string_view rest(all.data(), all.size());
    while (step(rest)) {
    }
    rest_ = std::vector<char>(rest.begin(), rest.end());
  }

 private:
  std::vector<char> rest_;
};

/// Aborts the process if `holds` is false: libFuzzer records that as a finding.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
}

}  // namespace acc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
