// SPDX-License-Identifier: Apache-2.0
// Fuzzes the log of the daemon. The input is a number that chooses the damage, and entries.
#include "journal/journal.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "input.hpp"
#include "journal/journal_file.hpp"

#include <boost/crc.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace {

using acc::fuzz::Input;
using acc::fuzz::require;
using acc::rendezvous::Journal;
using acc::rendezvous::JournalFile;
using Entry = std::tuple<int, std::string, std::string>;

constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kGroupBytes = 16;

/// A folder in memory, the same for all inputs of the process.
const std::filesystem::path& folder() {
  struct Folder {
    std::filesystem::path path = "/dev/shm/acc-fuzz-journal-" + std::to_string(::getpid());
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder made;
  return made.path;
}

/// Entries of the log; none if it is refused.
std::optional<std::vector<Entry>> read() {
  std::vector<Entry> entries;
  try {
    const Journal journal(std::make_unique<JournalFile>(folder(), false),
                          [&](const Journal::Entry& entry) {
                            entries.emplace_back(entry.kind, entry.first, entry.second);
                          });
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::config || error.code() == acc::Errc::not_supported,
            "a damaged log is an error of the configuration");
    return std::nullopt;
  }
  return entries;
}

std::string bytes_of_log() {
  std::string bytes(std::filesystem::file_size(folder() / "log"), '\0');
  std::ifstream(folder() / "log", std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void write_log(const std::string& bytes) {
  std::ofstream(folder() / "log", std::ios::binary) << bytes;
}

/// A group with any content and the right checksum: the log may be refused, not misread.
void check_content(std::string_view content) {
  std::string bytes = bytes_of_log();
  const std::uint64_t size = content.size();
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data() + 16, sizeof size);  // the salt
  crc.process_bytes(&size, sizeof size);
  crc.process_bytes(content.data(), content.size());
  const std::uint32_t sum = crc.checksum();
  bytes += "ACCG";
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += content;
  write_log(bytes);
  const auto found = read();
  std::size_t length = 0;
  for (const auto& [kind, first, second] : found.value_or(std::vector<Entry>())) {
    length += 1 + first.size() + second.size();
  }
  require(length <= content.size(), "entries are not longer than their group");
}

/// Size of a text in the log, with its length.
std::size_t size_of(std::string_view text) {
  return text.size() + (text.size() < 128 ? 1 : 2);
}

/// Groups of entries, of which the end is cut off or one byte is changed.
void check_damage(Input& input) {
  struct Group {
    std::size_t end;      ///< in the file
    std::size_t entries;  ///< of this group and those before it
  };
  const bool cuts = input.below(2) == 0;
  const std::size_t where = input.two_bytes();
  const std::uint8_t change = input.byte();
  std::vector<Entry> written;
  std::vector<Group> groups = {{kHeaderBytes, 0}};
  {
    Journal journal(std::make_unique<JournalFile>(folder(), false), [](const Journal::Entry&) {});
    while (!input.empty()) {
      std::size_t end = groups.back().end + kGroupBytes;
      for (int entry = input.below(3); entry >= 0; --entry) {
        const std::uint8_t kind = input.byte();
        const std::string_view first = input.take(input.byte());
        const std::string_view second = input.take(input.byte());
        journal.add({kind, first, second});
        written.emplace_back(kind, first, second);
        end += 1 + size_of(first) + size_of(second);
      }
      journal.commit();
      groups.push_back({end, written.size()});
    }
  }
  std::string bytes = bytes_of_log();
  require(bytes.size() >= groups.back().end, "the log has all groups");
  bytes.resize(groups.back().end);
  const std::size_t at = where % bytes.size();
  if (cuts) {
    bytes.resize(at);
  } else {
    bytes[at] = static_cast<char>(bytes[at] ^ change);
  }
  write_log(bytes);
  const auto found = read();
  if (!found) {
    require(cuts ? at < kHeaderBytes : change != 0, "a log that lacks only its end is read");
    return;
  }
  require(
      found->size() <= written.size() && std::equal(found->begin(), found->end(), written.begin()),
      "the log has the first of the entries");
  const auto whole = std::ranges::find(groups, found->size(), &Group::entries);
  require(whole != groups.end(), "the log has whole groups");
  const std::size_t undamaged = !cuts && change == 0 ? groups.back().end : at;
  require(whole + 1 == groups.end() || (whole + 1)->end > undamaged, "no whole group is lost");
  require(read() == found, "a log that was mended reads the same again");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  acc::prepare_log({.format = {}, .level = {"off", "this program"}, .components = {}});
  std::filesystem::remove(folder() / "log");
  Input input(data, size);
  if (input.below(2) == 0) {
    {
      const Journal journal(std::make_unique<JournalFile>(folder(), false),
                            [](const Journal::Entry&) {});
    }
    std::string bytes = bytes_of_log();
    bytes.resize(kHeaderBytes);
    write_log(bytes);
    check_content(input.rest());
  } else {
    check_damage(input);
  }
  return 0;
}
