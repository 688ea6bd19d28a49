// SPDX-License-Identifier: Apache-2.0
// The log: what it returns after any end of its writer, and what it refuses.
#include "journal/journal.hpp"

#include "acc/base/error.hpp"
#include "support.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace acc::rendezvous {
namespace {

namespace fs = std::filesystem;
using acc::test::file_text;
using acc::test::TemporaryFolder;
using acc::test::write_text;
using test::contains;
using test::error_of;
using Texts = std::vector<std::string>;

/// Returns the first texts of all entries in the log of a folder.
Texts entries_of(const fs::path& folder) {
  Texts all;
  const Journal journal(folder, false,
                        [&](const Journal::Entry& entry) { all.emplace_back(entry.first); });
  return all;
}

/// Writes a log of four groups: "a", "b" and "c", "d", and a large one. Returns its bytes, without
/// the zeros behind the last group, and the offsets of the groups' ends.
struct Written {
  Written() {
    Journal journal(folder.path(), false, [](const Journal::Entry&) {});
    const auto commit = [&](const Texts& texts) {
      for (const std::string& text : texts) {
        journal.add({1, text, "value"});
      }
      journal.commit();
      bytes = file_text(folder.path() / "log");
      bytes.resize(bytes.find_last_not_of('\0') + 1);
      ends.push_back(bytes.size());
      all.insert(all.end(), texts.begin(), texts.end());
      after.push_back(all);
    };
    after.emplace_back();
    ends.push_back(24);  // the header
    commit({"a"});
    commit({"b", "c"});
    commit({"d"});
    commit({std::string(40, 'e')});
  }
  /// Returns the entries of a log with these bytes.
  [[nodiscard]] Texts entries(const std::string& content) const {
    write_text(folder.path() / "log", content);
    return entries_of(folder.path());
  }

  TemporaryFolder folder;
  std::string bytes;
  Texts all;
  std::vector<std::size_t> ends;
  std::vector<Texts> after;  ///< entries after each commit
};

TEST_CASE("a log that ends at any byte has the whole groups, and takes more") {
  const Written written;
  std::size_t groups = 0;
  for (std::size_t size = written.ends[0]; size <= written.bytes.size(); ++size) {
    CAPTURE(size);
    while (groups + 1 < written.ends.size() && written.ends[groups + 1] <= size) {
      ++groups;
    }
    for (const std::size_t zeros : {0, 100}) {  // disk space that was allocated in advance
      CHECK(written.entries(written.bytes.substr(0, size) + std::string(zeros, '\0')) ==
            written.after[groups]);
    }
  }
  {
    Journal journal(written.folder.path(), true, [](const Journal::Entry&) {});
    journal.add({1, "more", ""});
    journal.commit();
  }
  Texts expected = written.all;
  expected.emplace_back("more");
  CHECK(entries_of(written.folder.path()) == expected);
}

TEST_CASE("a flipped bit is never believed, and refused unless it looks like an unfinished write") {
  const Written written;
  for (std::size_t at = 0; at < written.bytes.size(); ++at) {
    CAPTURE(at);
    std::string bytes = written.bytes;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    Texts found;
    const std::string why = error_of([&] { found = written.entries(bytes); });
    if (at >= written.ends[3]) {
      CHECK(why.empty());
      CHECK(found == written.after[3]);
    } else {
      CHECK(contains(why, (written.folder.path() / "log").string()));
      CHECK((at < 8 ? contains(why, "is not a log of acc-rendezvous")
                    : contains(why, "is damaged at byte ")));
    }
  }
}

TEST_CASE("a log of a newer version, and one that another process uses, are refused by name") {
  const TemporaryFolder folder;
  {
    const Journal journal(folder.path(), false, [](const Journal::Entry&) {});
    const std::string why = error_of([&] { entries_of(folder.path()); });
    CHECK(contains(why, "another acc-rendezvous uses " + folder.path().string()));
  }
  // The header of version 2 with its own checksum; written by hand, with salt 0.
  const std::string newer("acc-rdzv\x02\0\0\0\xe4\x0e\xdc\xd1\0\0\0\0\0\0\0\0", 24);
  write_text(folder.path() / "log", newer);
  const std::string why = error_of([&] { entries_of(folder.path()); });
  CHECK_MESSAGE(contains(why, "log has version 2, expected 1: it is the log of a newer"), why);
  CHECK(file_text(folder.path() / "log") == newer);
}

TEST_CASE("a log that is rewritten has the new entries, and stays short") {
  const TemporaryFolder folder;
  {
    Journal journal(folder.path(), false, [](const Journal::Entry&) {});
    const std::string value(1 << 20, 'v');
    std::uintmax_t longest = 0;
    for (int i = 0; i < 100; ++i) {
      journal.add({1, "key", value});
      if (journal.is_long()) {
        journal.rewrite([&](const Journal::Receive& add) { add({1, "key", value}); });
        CHECK_FALSE(journal.has_pending());
      }
      journal.commit();
      longest = std::max(longest, fs::file_size(folder.path() / "log"));
    }
    CHECK(longest < (std::uintmax_t{30} << 20));
  }
  const auto names = entries_of(folder.path());
  CHECK(!names.empty());
  CHECK(names.size() < 30);
  CHECK_FALSE(fs::exists(folder.path() / "log.new"));
}

}  // namespace
}  // namespace acc::rendezvous
