// SPDX-License-Identifier: Apache-2.0
// The log: what it returns after any end of its writer, and what it refuses.
#include "journal/journal.hpp"

#include "acc/base/error.hpp"
#include "journal/journal_file.hpp"
#include "store/key_table.hpp"
#include "support.hpp"
#include "support/other_user.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
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
  const Journal journal(std::make_unique<JournalFile>(folder, false),
                        [&](const Journal::Entry& entry) { all.emplace_back(entry.first); });
  return all;
}

/// Writes a log of four groups: "a", "b" and "c", "d", and a large one. Returns its bytes, without
/// the zeros behind the last group, and the offsets of the groups' ends.
struct Written {
  Written() {
    Journal journal(std::make_unique<JournalFile>(folder.path(), false),
                    [](const Journal::Entry&) {});
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
    Journal journal(std::make_unique<JournalFile>(written.folder.path(), true),
                    [](const Journal::Entry&) {});
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

TEST_CASE("a log of another version, and one that another process uses, are refused by name") {
  const TemporaryFolder folder;
  {
    const Journal journal(std::make_unique<JournalFile>(folder.path(), false),
                          [](const Journal::Entry&) {});
    const std::string why = error_of([&] { entries_of(folder.path()); });
    CHECK(contains(why, "another acc-rendezvous uses " + folder.path().string()));
  }
  // Headers of other versions with their own checksums; written by hand, with salt 0.
  for (const auto& [header, expected] : std::initializer_list<std::pair<std::string, const char*>>{
           {{"acc-rdzv\x04\0\0\0\x38\x51\xb7\xf4\0\0\0\0\0\0\0\0", 24},
            "log has version 4, expected 3: it is the log of a newer"},
           {{"acc-rdzv\x02\0\0\0\xe4\x0e\xdc\xd1\0\0\0\0\0\0\0\0", 24},
            "log has version 2, expected 3: it is the log of another"}}) {
    write_text(folder.path() / "log", header);
    const std::string why = error_of([&] { entries_of(folder.path()); });
    CHECK_MESSAGE(contains(why, expected), why);
    CHECK(file_text(folder.path() / "log") == header);
  }
}

TEST_CASE("a log that is rewritten has the new entries, and stays short") {
  const TemporaryFolder folder;
  {
    Journal journal(std::make_unique<JournalFile>(folder.path(), false),
                    [](const Journal::Entry&) {});
    const std::string value(1 << 20, 'v');
    std::uintmax_t longest = 0;
    for (int i = 0; i < 100; ++i) {
      journal.add({1, "key", value});
      if (journal.is_long()) {
        journal.rewrite([&](const Journal::Receive& add) { add({1, "key", value}); });
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

TEST_CASE("an unfinished log keeps no disk space, whether its writer failed or was killed") {
  const TemporaryFolder folder;
  const fs::path unfinished = folder.path() / "log.new";
  Journal(std::make_unique<JournalFile>(folder.path(), false), [](const Journal::Entry&) {});
  write_text(unfinished, "what a killed process has left");
  {
    JournalFile file(folder.path(), false);
    CHECK_FALSE(fs::exists(unfinished));
    file.read([](std::string_view) { return true; });
    // A write beyond the limit fails with EFBIG, as one on a full disk with ENOSPC.
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const rlimit small{1 << 20, limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string why =
        error_of([&] { file.replace(std::vector<std::string>{std::string(2 << 20, 'x')}); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    std::signal(SIGXFSZ, before);
    CHECK_MESSAGE(contains(why, "cannot write " + unfinished.string()), why);
    CHECK_FALSE(fs::exists(unfinished));
    file.append("still written");
  }
  for (const char* name : {"log", "log.new", "lock"}) {
    CAPTURE(name);
    const fs::path path = folder.path() / name;
    const fs::path victim = folder.path() / "victim";
    write_text(victim, "mine");
    fs::remove(path);
    fs::create_symlink(victim, path);
    const std::string why = error_of([&] { entries_of(folder.path()); });
    CHECK_MESSAGE(contains(why, path.string() + ": it is a symbolic link to "), why);
    CHECK(file_text(victim) == "mine");
    CHECK(fs::is_symlink(path));
    fs::remove(path);
  }
}

TEST_CASE("a log keeps its owner, and whoever can read its folder does not hold up the daemon") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make a process of another user");
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  entries_of(folder.path());
  acc::test::OtherUser stranger([&](int ready) {
    const UniqueFd opened(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened || ::flock(opened.get(), LOCK_EX | LOCK_NB) != 0 ||
        ::open((folder.path() / "lock").c_str(), O_RDONLY) >= 0 || ::write(ready, "r", 1) != 1) {
      return 1;
    }
    return ::pause();
  });
  stranger.await_ready();
  const fs::path log = folder.path() / "log";
  REQUIRE(::chown(log.c_str(), acc::test::kNobody, acc::test::kNobody) == 0);
  JournalFile file(folder.path(), false);
  file.replace({});
  struct stat status {};
  REQUIRE(::stat(log.c_str(), &status) == 0);
  CHECK(status.st_uid == acc::test::kNobody);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(contains(error_of([&] { entries_of(folder.path()); }),
                 ": process " + std::to_string(::getpid()) + " ("));
}

/// A storage whose writes end when the test says so.
class SlowStorage final : public JournalStorage {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int permits = 0;
    std::vector<std::size_t> sizes;  ///< of the groups
    int num_rewrites = 0;
  };
  explicit SlowStorage(State& state) : state_(state) {}

  void read(const Receive& /*receive*/) override {}
  void append(std::string_view group) override {
    std::unique_lock lock(state_.mutex);
    state_.changed.wait(lock, [this] { return state_.permits > 0; });
    --state_.permits;
    state_.sizes.push_back(group.size());
  }
  void replace(std::span<const std::string> /*groups*/) override {
    const std::lock_guard lock(state_.mutex);
    ++state_.num_rewrites;
  }
  [[nodiscard]] bool waits() const noexcept override { return true; }

 private:
  State& state_;
};

TEST_CASE("a log collects entries while it waits for the disk, and says what is written") {
  SlowStorage::State disk;
  std::mutex mutex;
  std::condition_variable written;
  int num_writes = 0;
  const auto permit = [&] {
    const std::lock_guard lock(disk.mutex);
    ++disk.permits;
    disk.changed.notify_all();
  };
  const auto await_write = [&](int count) {
    std::unique_lock lock(mutex);
    written.wait(lock, [&] { return num_writes >= count; });
  };
  {
    Journal journal(
        std::make_unique<SlowStorage>(disk), [](const Journal::Entry&) {},
        [&] {
          const std::lock_guard lock(mutex);
          ++num_writes;
          written.notify_all();
        });
    CHECK(journal.add({1, "a"}) == 1);
    journal.commit();
    for (int i = 0; i < 3; ++i) {
      journal.add({1, "b"});
      journal.commit();
    }
    CHECK(journal.num_written() == 0);
    permit();
    await_write(1);
    journal.commit();
    CHECK(journal.num_written() == 1);
    journal.add({1, "c"});
    permit();
    await_write(2);
    journal.commit();
    CHECK(journal.num_written() == 4);
    permit();  // the end of the journal writes the last entry
  }
  CHECK(disk.sizes == std::vector<std::size_t>{4, 12, 4});
}

TEST_CASE("a log is rewritten also if entries are added during each write") {
  SlowStorage::State disk;
  disk.permits = 100;
  std::mutex mutex;
  std::condition_variable written;
  int num_writes = 0;
  const std::string value(1 << 20, 'v');
  {
    Journal journal(
        std::make_unique<SlowStorage>(disk), [](const Journal::Entry&) {},
        [&] {
          const std::lock_guard lock(mutex);
          ++num_writes;
          written.notify_all();
        });
    for (int i = 0; i < 40; ++i) {
      journal.add({1, "key", value});
      if (journal.is_long()) {
        journal.rewrite([&](const Journal::Receive& add) { add({1, "key", value}); });
      } else {
        journal.commit();
      }
      std::unique_lock lock(mutex);
      written.wait(lock, [&] { return num_writes > i; });
    }
  }
  CHECK(disk.num_rewrites == 2);
}

// Clients count at several keys; each reply is acknowledged when the change that it shows is in the
// log. The server is killed at any moment, with any prefix of what was not in the log yet.
TEST_CASE("simulation: no acknowledged change of a key is lost, at any end of the server") {
  using Change = KeyTable::Change;
  struct Record {
    Change change;
    std::string key;
    std::string value;
  };
  std::mt19937_64 chance(7);
  const auto draw = [&](std::uint64_t below) { return chance() % below; };
  std::vector<Record> log;
  std::size_t num_written = 0;
  std::map<std::string, std::int64_t> acknowledged;
  struct Reply {
    std::uint64_t shown;
    std::string key;
    std::int64_t value;
  };
  std::vector<Reply> held;
  auto table = std::make_unique<KeyTable>([](KeyTable::WaiterId) {});
  const auto record = [&] {
    table->record_with([&](Change change, std::string_view key, std::string_view value) {
      log.push_back({change, std::string(key), std::string(value)});
      return log.size();
    });
  };
  record();
  int num_crashes = 0;
  int num_early = 0;  // replies that need not wait for the changes of others
  for (int event = 0; event < 300'000; ++event) {
    const std::string key = "key" + std::to_string(draw(20));
    switch (draw(8)) {
      case 0: num_written += draw(log.size() - num_written + 1); break;
      case 1:
      case 2:
      case 3: {
        const auto sum = table->add(key, 1);
        held.push_back({table->last_change(key), key, sum.value_or(-1)});
        break;
      }
      default: {
        const std::string* value = table->find(key);
        num_early += table->last_change(key) <= num_written && num_written < log.size() ? 1 : 0;
        held.push_back({table->last_change(key), key, value != nullptr ? std::stoll(*value) : 0});
      }
    }
    std::erase_if(held, [&](const Reply& reply) {
      if (reply.shown > num_written) {
        return false;
      }
      acknowledged[reply.key] = std::max(acknowledged[reply.key], reply.value);
      return true;
    });
    if (draw(500) == 0) {
      ++num_crashes;
      log.resize(num_written + draw(log.size() - num_written + 1));
      num_written = log.size();
      held.clear();
      table = std::make_unique<KeyTable>([](KeyTable::WaiterId) {});
      for (const Record& each : log) {
        table->repeat(each.change, each.key, each.value);
      }
      for (const auto& each : acknowledged) {
        const std::string* found = table->find(each.first);
        CAPTURE(each.first);
        const std::int64_t recovered = found != nullptr ? std::stoll(*found) : 0;
        REQUIRE(recovered >= each.second);
      }
      log.clear();  // rewritten
      table->save([&](Change change, std::string_view name, std::string_view value) {
        log.push_back({change, std::string(name), std::string(value)});
      });
      num_written = log.size();
      record();
    }
  }
  CHECK(num_crashes > 100);
  CHECK(num_early > 1000);
}

}  // namespace
}  // namespace acc::rendezvous
