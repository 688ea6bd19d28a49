// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using acc::OutputFile;
using acc::test::refusal;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string all_of(const InputFile& file) {
  std::string text(file.nbytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// The text differs at every position, so that missing or swapped parts are detected.
std::string pattern(std::size_t nbytes) {
  std::string text(nbytes, '\0');
  std::uint32_t state = 1;
  for (char& c : text) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

}  // namespace

TEST_CASE("crc32 is zip's, computed in one piece or in many") {
  CHECK(crc32(0, {}) == 0);
  CHECK(crc32(0, bytes_of("123456789")) == 0xcbf43926);  // the published check value
  CHECK(crc32(crc32(0, bytes_of("1234")), bytes_of("56789")) == 0xcbf43926);
}

TEST_CASE("an output file has the bytes that were written, in pieces of any size") {
  const acc::test::TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  constexpr std::size_t kBuffer = 64 << 10;
  const std::vector<std::vector<std::size_t>> cases = {
      {},
      {0},
      {1, 2, 3},
      {kBuffer},
      {kBuffer - 1, 1, 1},
      {1, kBuffer},
      {1, kBuffer - 1, 5},
      {10, 3 * kBuffer + 7, 10, kBuffer + 1, kBuffer / 2, kBuffer / 2 + 1},
  };
  for (const std::vector<std::size_t>& pieces : cases) {
    CAPTURE(pieces);
    std::ofstream(path) << "an older and longer file " << std::string(1000, 'x');
    std::size_t total = 0;
    for (const std::size_t piece : pieces) {
      total += piece;
    }
    const std::string text = pattern(total);
    OutputFile out(path);
    out.reserve(total + 100);
    std::size_t at = 0;
    for (const std::size_t piece : pieces) {
      CHECK(out.position() == at);
      out.write(std::string_view(text).substr(at, piece));
      at += piece;
    }
    CHECK(out.position() == total);
    out.close();
    CHECK(all_of(InputFile(path)) == text);
  }
}

TEST_CASE("a file that is not closed leaves nothing") {
  const acc::test::TemporaryFolder folder;
  { OutputFile(folder.path() / "file").write("text"); }
  CHECK_FALSE(fs::exists(folder.path() / "file"));
}

TEST_CASE("a file that cannot be written is named with the reason") {
  const acc::test::TemporaryFolder folder;
  const std::string missing = (folder.path() / "missing" / "file").string();
  CHECK(refusal([&] { OutputFile{missing}; }) ==
        "cannot create " + missing + ": No such file or directory");
  // A write beyond the limit fails with EFBIG, as one on a full disk with ENOSPC.
  const std::string full = (folder.path() / "full").string();
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit none{0, limit.rlim_max};
  for (const std::size_t nbytes : {std::size_t{1}, std::size_t{1} << 20}) {
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
    const std::string reason = refusal([&] {
      OutputFile file(full);
      file.write(std::string(nbytes, 'x'));
      file.close();
    });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(reason == "cannot write " + full + ": File too large");
    CHECK_FALSE(fs::exists(full));
  }
  std::signal(SIGXFSZ, before);
}

TEST_CASE("a file larger than the disk is refused before it is written") {
  const acc::test::TemporaryFolder folder;
  OutputFile out(folder.path() / "file");
  const std::string message = refusal([&] { out.reserve(std::uint64_t{1} << 50); });
  if (message.empty()) {
    MESSAGE("skipped: ", folder.path().string(), " lies on a file system without fallocate");
    return;
  }
  CHECK(message.starts_with("cannot make room for 1125899906842624 bytes in " +
                            (folder.path() / "file").string() + ": "));
}

TEST_CASE("an input file reads exactly what is asked for") {
  const acc::test::TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  std::ofstream(path) << "0123456789";
  const InputFile file(path);
  CHECK(file.nbytes() == 10);
  std::string text(4, ' ');
  file.read(6, std::as_writable_bytes(std::span(text)));
  CHECK(text == "6789");
  CHECK(refusal([&] { file.read(7, std::as_writable_bytes(std::span(text))); }) ==
        path.string() + " is truncated: at least 11 bytes expected, 10 found");
  const std::uint64_t far = std::numeric_limits<std::uint64_t>::max() - 1;
  CHECK(refusal([&] { file.read(far, std::as_writable_bytes(std::span(text))); }) ==
        path.string() + " is truncated: at least 18446744073709551615 bytes expected, 10 found");
  fs::resize_file(path, 8);
  CHECK(refusal([&] { file.read(6, std::as_writable_bytes(std::span(text))); }) ==
        path.string() + " is truncated: at least 10 bytes expected, 8 found");
}

TEST_CASE("a path that is not a regular file is not opened") {
  const acc::test::TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refusal([&] { InputFile{pipe}; }) ==
        "cannot read " + pipe.string() + ": not a regular file");
  CHECK(refusal([&] { InputFile{folder.path()}; }) ==
        "cannot read " + folder.path().string() + ": not a regular file");
  CHECK(refusal([&] { InputFile{folder.path() / "missing"}; }) ==
        "cannot open " + (folder.path() / "missing").string() + ": No such file or directory");
}
