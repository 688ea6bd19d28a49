// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/archive/archive.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "archive/zip_format.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::OutputFile;
using acc::test::TemporaryFolder;

namespace {

/// Reads from a string. A read outside of it is a mistake of the reader.
archive::ReadAt in(const std::string& bytes) {
  return [&bytes](std::uint64_t offset, std::span<std::byte> out) {
    REQUIRE(offset <= bytes.size());
    REQUIRE(out.size() <= bytes.size() - offset);
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
}

std::vector<archive::Record> records_of(const std::string& bytes) {
  return archive::read_records(in(bytes), bytes.size(), "file");
}

std::string refusal(const std::string& bytes) {
  return acc::test::refusal([&] { return records_of(bytes); });
}

struct Named {
  std::string name, payload;
};

std::string written(const TemporaryFolder& folder, const std::vector<Named>& records,
                    const std::string& before = "") {
  const auto path = folder.path() / "archive";
  OutputFile out(path);
  out.write(before);
  archive::Writer writer(out);
  for (const Named& record : records) {
    writer.begin(record.name, record.payload.size());
    const auto bytes = std::as_bytes(std::span(record.payload));
    const std::size_t half = bytes.size() / 2;
    CHECK(writer.append(bytes.first(half)) == crc32(0, bytes.first(half)));
    writer.append(bytes.subspan(half));
    writer.end();
  }
  writer.finish();
  out.close();
  return acc::test::file_text(path.string()).substr(before.size());
}

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

template <typename T>
std::string with(std::string bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

}  // namespace

TEST_CASE("crc32_combine: the result for two pieces is the checksum of both") {
  std::mt19937 generator(1);
  std::string bytes(5000, '\0');
  for (char& c : bytes) {
    c = static_cast<char>(generator());
  }
  const auto all = std::as_bytes(std::span(bytes));
  for (const std::size_t cut : {0, 1, 7, 255, 256, 2048, 4999, 5000}) {
    const std::uint32_t first = crc32(0, all.first(cut)), second = crc32(0, all.subspan(cut));
    CHECK(crc32_combine(first, second, all.size() - cut) == crc32(0, all));
  }
}

TEST_CASE("archive: written records are found where lay_out places them") {
  const TemporaryFolder folder;
  std::mt19937 generator(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Named> records;
    std::vector<archive::RecordSize> sizes;
    for (unsigned i = 0; i < generator() % 12; ++i) {
      std::string payload(generator() % 3 == 0 ? 0 : generator() % 5000, '\0');
      for (char& c : payload) {
        c = static_cast<char>(generator());
      }
      records.push_back({std::string(generator() % 70, 'n') + std::to_string(i), payload});
      sizes.push_back({records.back().name, payload.size()});
    }
    // Also at a place within a larger file.
    const std::string bytes = written(folder, records, std::string(generator() % 100, 'x'));
    const archive::Layout layout = archive::lay_out(sizes);
    CHECK(layout.nbytes == bytes.size());
    const auto found = records_of(bytes);
    REQUIRE(found.size() == records.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].name == records[i].name);
      CHECK(found[i].offset == layout.offsets[i]);
      CHECK(found[i].offset % 64 == 0);
      CHECK(bytes.compare(found[i].offset, found[i].nbytes, records[i].payload) == 0);
      CHECK(found[i].nbytes == records[i].payload.size());
      CHECK(found[i].crc32 == crc32(0, std::as_bytes(std::span(records[i].payload))));
    }
  }
}

TEST_CASE("archive: zip64 records beyond 4 GiB: layout, headers and reader agree") {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  const std::vector<std::vector<archive::RecordSize>> cases = {
      {{"a", 0xfffffffe}, {"b", 1}},
      {{"a", 0xffffffff}, {"b", 1}, {"c", 0}},
      {{"a", 3 * kGiB}, {"b", 5 * kGiB}, {"c", 9}, {"d", 5 * kGiB}},
      {{"data.pkl", 7}, {"data/0", 4 * kGiB - 64}, {"version", 2}},
  };
  for (const auto& records : cases) {
    // Only the headers, at their places: a reader reads nothing else.
    std::vector<std::pair<std::uint64_t, std::string>> parts;
    std::string central;
    std::uint64_t at = 0;
    const archive::Layout layout = archive::lay_out(records, "r");
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::string name = "r/" + records[i].name;
      const archive::zip::Entry entry{name, at, records[i].nbytes, 5};
      const std::string header = archive::zip::local_header(entry);
      parts.emplace_back(at, header);
      CHECK(header.size() == archive::zip::local_header_nbytes(entry));
      CHECK(at + header.size() == layout.offsets[i]);
      CHECK(layout.offsets[i] % 64 == 0);
      const std::string descriptor = archive::zip::descriptor(entry);
      CHECK(descriptor.size() == archive::zip::descriptor_nbytes(entry));
      at += header.size() + records[i].nbytes + descriptor.size();
      archive::zip::append_central_header(central, entry);
    }
    parts.emplace_back(at, central + archive::zip::trailer(records.size(), at, central.size()));
    CHECK(parts.back().first + parts.back().second.size() == layout.nbytes);
    const auto found = archive::read_records(
        [&](std::uint64_t offset, std::span<std::byte> out) {
          for (const auto& [begin, part] : parts) {
            if (offset < begin || offset + out.size() > begin + part.size()) {
              continue;
            }
            std::memcpy(out.data(), part.data() + (offset - begin), out.size());
            return;
          }
          std::fill(out.begin(), out.end(), std::byte{0});
        },
        layout.nbytes, "file");
    REQUIRE(found.size() == records.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].name == records[i].name);
      CHECK(found[i].offset == layout.offsets[i]);
      CHECK(found[i].nbytes == records[i].nbytes);
    }
  }
}

TEST_CASE("archive: a classic zip with a comment, without descriptors and padding") {
  // Python 3.11, zipfile: "any/a" holds "hello", "any/b" nothing; comment "hi".
  const std::string bytes = bytes_of(
      "504b03041400000000000000210086a61036050000000500000005000000616e792f6168656c"
      "6c6f504b03041400000000000000210000000000000000000000000005000000616e792f6250"
      "4b010214031400000000000000210086a6103605000000050000000500000000000000000000"
      "00800100000000616e792f61504b010214031400000000000000210000000000000000000000"
      "0000050000000000000000000000800128000000616e792f62504b0506000000000200020066"
      "0000004b00000002006869");
  const auto found = records_of(bytes);
  REQUIRE(found.size() == 2);
  CHECK(found[0].name == "a");
  CHECK(bytes.substr(found[0].offset, found[0].nbytes) == "hello");
  CHECK(found[0].crc32 == 0x3610a686);
  CHECK(found[1].name == "b");
  CHECK(found[1].nbytes == 0);
}

TEST_CASE("archive: a truncated archive is an Error, a changed one an Error or valid records") {
  const TemporaryFolder folder;
  const std::string whole =
      written(folder, {{"data.pkl", "pickle"}, {"data/0", std::string(300, 'x')}, {"e", ""}});
  CHECK(refusal(whole).empty());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK(refusal(whole.substr(0, size)).starts_with("file: "));
    CHECK(refusal(whole.substr(whole.size() - size)).starts_with("file: "));
  }
  std::mt19937 generator(4);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = whole;
    for (unsigned k = 0; k <= generator() % 3; ++k) {
      changed[generator() % changed.size()] =
          static_cast<char>(generator() % 4 == 0 ? 0xff : generator());
    }
    try {
      for (const archive::Record& record : records_of(changed)) {
        CHECK(record.offset <= changed.size());
        CHECK(record.nbytes <= changed.size() - record.offset);
      }
    } catch (const acc::Error&) {
    }
  }
}

TEST_CASE("archive: hostile archives are refused with the reason") {
  const TemporaryFolder folder;
  const std::string good = written(folder, {{"a", "payload"}, {"b", "more"}});
  const std::size_t first = good.find("PK\1\2"), second = good.find("PK\1\2", first + 1);
  const std::size_t end64 = good.find("PK\6\6"), end = good.find("PK\5\6");
  REQUIRE(second != std::string::npos);
  const struct {
    const char* what;
    std::string bytes;
    const char* message;
  } kCases[] = {
      {"no zip", std::string(500, 'a'), "not a torch.save archive"},
      {"tiny", "PK", "not a torch.save archive"},
      {"encrypted", with<std::uint16_t>(good, first + 8, 0x0809), "record archive/a is encrypted"},
      {"deflated", with<std::uint16_t>(good, first + 10, 8), "archive/a is compressed (method 8)"},
      {"two sizes", with<std::uint32_t>(good, first + 20, 6), "has two different sizes"},
      {"no zip64 field", with<std::uint32_t>(good, first + 24, 0xffffffff), "has no zip64 field"},
      {"header outside", with<std::uint32_t>(good, first + 42, 0xfffffff0), "outside of the arch"},
      {"header elsewhere", with<std::uint32_t>(good, first + 42, 1), "no local header of record"},
      {"too long",
       with<std::uint32_t>(with<std::uint32_t>(good, first + 20, 9999), first + 24, 9999),
       "of 9999 bytes lies outside"},
      {"over the next",
       with<std::uint32_t>(with<std::uint32_t>(good, first + 20, 40), first + 24, 40),
       "records a and b overlap"},
      {"twice", with(with<std::uint32_t>(good, second + 42, 0), second + 46 + 8, 'a'), "overlap"},
      {"another folder", with(with(good, second + 46, 'X'), good.find("archive/b"), 'X'),
       "is not in the root folder archive/"},
      {"name outside", with<std::uint16_t>(good, second + 28, 9999), "a name reaches beyond it"},
      {"comment outside", with<std::uint16_t>(good, second + 32, 1), "a name reaches beyond it"},
      {"more records", with<std::uint64_t>(good, end64 + 32, 3),
       "110 bytes is too small for 3 records"},
      {"fewer records", with<std::uint64_t>(good, end64 + 32, 1), "more than 1"},
      {"a record in the end",
       with<std::uint64_t>(with<std::uint64_t>(good, end64 + 32, 3), end64 + 40, 150),
       "damaged central directory"},
      {"endless records", with<std::uint64_t>(good, end64 + 32, ~0ULL), "records"},
      {"directory outside", with<std::uint64_t>(good, end64 + 48, ~0ULL - 5),
       "directory lies outside"},
      {"endless directory", with<std::uint64_t>(good, end64 + 40, ~0ULL), "directory lies outside"},
      {"end64 outside", with<std::uint64_t>(good, end - 12, ~0ULL), "end record lies outside"},
      {"end64 elsewhere", with<std::uint64_t>(good, end - 12, 0), "no zip64 end record"},
      {"several disks", with<std::uint16_t>(good, end + 4, 1), "into several parts"},
  };
  for (const auto& row : kCases) {
    CAPTURE(row.what);
    const std::string fault = refusal(row.bytes);
    CHECK_MESSAGE(fault.find(row.message) != std::string::npos, fault);
  }
}

TEST_CASE("archive: a record with another size than announced is an internal error") {
  const TemporaryFolder folder;
  OutputFile out(folder.path() / "archive");
  archive::Writer writer(out);
  writer.begin("a", 4);
  CHECK_THROWS_AS(writer.append(std::as_bytes(std::span("12345", 5))), acc::Error);
  writer.append(std::as_bytes(std::span("123", 3)));
  CHECK_THROWS_AS(writer.end(), acc::Error);
}
