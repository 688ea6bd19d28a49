#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

/// What the fuzz targets share. A target defines LLVMFuzzerTestOneInput; it is linked with
/// libFuzzer, or with replay.cpp, which runs files.
namespace acc::fuzz {

/// Takes a fuzzer's bytes apart. Where they have run out, numbers are 0 and strings short.
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

/// Cuts bytes into pieces: eight lengths, taken in turn, where 0 stands for all there is.
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

/// What came and was not taken yet, as a Connection keeps it; in memory of just that size and, each
/// time, of another place, so that a sanitizer sees who looks beyond it or holds on to it.
class Unread {
 public:
  /// Appends `bytes` and calls `step(rest)` while it takes something off the rest and says so.
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

/// Ends the process, which is what a fuzzer takes for a finding.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
}

}  // namespace acc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
