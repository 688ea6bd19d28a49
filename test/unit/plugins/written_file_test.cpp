// SPDX-License-Identifier: Apache-2.0
// Names under which a program writes, and that stand for something else than its file; and locks.
#include "acc/base/written_file.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/file_lock.hpp"
#include "acc/base/output_file.hpp"
#include "acc/base/trace_file.hpp"
#include "support/errors.hpp"
#include "support/other_user.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace fs = std::filesystem;
using acc::Error;
using acc::FileLock;
using acc::OutputFile;
using acc::Overwrite;
using acc::UniqueFd;
using acc::test::contains;
using acc::test::file_text;
using acc::test::kNobody;
using acc::test::OtherUser;
using acc::test::TemporaryFolder;
using acc::test::thrown_by;
using acc::test::write_text;

namespace {

const std::string kEvent = "{\"name\":\"a\"},\n";
constexpr std::chrono::milliseconds kNoTime{0};

struct stat state_of(const fs::path& path) {
  struct stat status {};
  CHECK_MESSAGE(::lstat(path.c_str(), &status) == 0, path);
  return status;
}

/// Puts something at a path that must not be written. `victim`: a file with other content.
struct Trap {
  const char* what;
  std::function<void(const fs::path& path, const fs::path& victim)> set;
  const char* message;
  bool is_link_or_special = true;
};

const std::vector<Trap>& traps() {
  static const std::vector<Trap> all = {
      {"link",
       [](const fs::path& path, const fs::path& victim) { fs::create_symlink(victim, path); },
       "it is a symbolic link to "},
      {"link to nothing",
       [](const fs::path& path, const fs::path&) { fs::create_symlink("nowhere", path); },
       "it is a symbolic link to nowhere"},
      {"link to a device",
       [](const fs::path& path, const fs::path&) { fs::create_symlink("/dev/null", path); },
       "it is a symbolic link to /dev/null"},
      {"FIFO",
       [](const fs::path& path, const fs::path&) { REQUIRE(::mkfifo(path.c_str(), 0666) == 0); },
       "it is a FIFO, not a file"},
      {"folder", [](const fs::path& path, const fs::path&) { fs::create_directory(path); },
       "it is a folder, not a file"},
      {"socket",
       [](const fs::path& path, const fs::path&) {
         const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
         sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
         path.string().copy(address.sun_path, sizeof address.sun_path - 1);
         REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
       },
       "it is a socket, not a file"},
      {"hard link",
       [](const fs::path& path, const fs::path& victim) { fs::create_hard_link(victim, path); },
       "the file has 2 names (hard links)", false},
  };
  return all;
}

/// A way to write a file, and the name at which a trap is set.
struct Writer {
  const char* what;
  std::function<void(const fs::path& path)> write;
  const char* suffix = "";
  bool takes_hard_links = false;  // removes the name only
};

const std::vector<Writer>& writers() {
  static const std::vector<Writer> all = {
      {"a file that is replaced",
       [](const fs::path& path) { acc::write_file(path, "new", Overwrite::yes); }},
      {"its temporary name",
       [](const fs::path& path) { acc::write_file(path, "new", Overwrite::yes); }, ".acc-tmp",
       true},
      {"a part of a folder",
       [](const fs::path& path) {
         OutputFile file(path);
         file.write("new");
         file.close();
       },
       "", true},
      {"a file that grows",
       [](const fs::path& path) { acc::open_file(path, O_WRONLY | O_APPEND); }},
      {"a file that is emptied",
       [](const fs::path& path) { acc::open_file(path, O_WRONLY | O_TRUNC); }},
      {"a private file", [](const fs::path& path) { acc::open_private_file(path); }},
      {"a new trace", [](const fs::path& path) { acc::create_trace_file(path); }},
      {"a trace", [](const fs::path& path) { acc::append_trace_events(path, kEvent); }},
      {"the lock of a trace", [](const fs::path& path) { acc::append_trace_events(path, kEvent); },
       ".lock"},
  };
  return all;
}

/// Waits with the lock of the file at `path`, which it can read.
int hold_lock(const fs::path& path, int ready) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 || ::write(ready, "r", 1) != 1) {
    return 1;
  }
  return ::pause();
}

}  // namespace

TEST_CASE("nothing is written through links and into special files, and they stay") {
  for (const Writer& writer : writers()) {
    for (const Trap& trap : traps()) {
      CAPTURE(writer.what);
      CAPTURE(trap.what);
      const TemporaryFolder folder;
      const fs::path victim = folder.path() / "victim";
      write_text(victim, "mine");
      const fs::path path = folder.path() / "file";
      const fs::path set = path.string() + writer.suffix;
      trap.set(set, victim);
      const struct stat before = state_of(set);
      const auto error = thrown_by([&] { writer.write(path); });
      CHECK(file_text(victim) == "mine");
      if (writer.takes_hard_links && !trap.is_link_or_special) {
        CHECK_FALSE(error.has_value());
        CHECK(state_of(victim).st_nlink == 1);
        continue;
      }
      REQUIRE(error.has_value());
      CHECK(error->code() == acc::Errc::config);
      CHECK(contains(error->what(), "cannot write " + set.string() + ": "));
      CHECK_MESSAGE(contains(error->what(), trap.message), error->what());
      CHECK(state_of(set).st_ino == before.st_ino);
      CHECK((set == acc::temporary_name(path) || !fs::exists(acc::temporary_name(path))));
    }
  }
}

TEST_CASE("a device takes what is appended") {
  const UniqueFd null = acc::open_file("/dev/null", O_WRONLY | O_APPEND);
  CHECK(::write(null.get(), "x", 1) == 1);
}

TEST_CASE("a file that is replaced keeps its owner, its mode and its access list") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  for (const mode_t mode : {0600, 0640, 0604, 0444}) {
    CAPTURE(mode);
    fs::remove(path);
    write_text(path, "old");
    if (::geteuid() == 0) {
      REQUIRE(::chown(path.c_str(), kNobody, kNobody) == 0);
    }
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    const struct stat before = state_of(path);
    acc::write_file(path, "new", Overwrite::yes);
    const struct stat after = state_of(path);
    CHECK(file_text(path) == "new");
    CHECK(after.st_ino != before.st_ino);
    CHECK(after.st_mode == before.st_mode);
    CHECK(after.st_uid == before.st_uid);
    CHECK(after.st_gid == before.st_gid);
  }
  // Version 2; then tag, permissions and id (linux/posix_acl_xattr.h) of the owner, a user, the
  // group, the mask and others.
  const std::string list(
      "\2\0\0\0"
      "\1\0\6\0\xff\xff\xff\xff"
      "\2\0\4\0\xfe\xff\0\0"
      "\4\0\0\0\xff\xff\xff\xff"
      "\x10\0\4\0\xff\xff\xff\xff"
      "\x20\0\0\0\xff\xff\xff\xff",
      44);
  constexpr const char* kName = "system.posix_acl_access";
  if (::setxattr(path.c_str(), kName, list.data(), list.size(), 0) != 0) {
    MESSAGE("skipped: the file system has no access lists");
    return;
  }
  acc::write_file(path, "newer", Overwrite::yes);
  std::string found(100, '\0');
  found.resize(static_cast<std::size_t>(
      std::max<ssize_t>(0, ::getxattr(path.c_str(), kName, found.data(), found.size()))));
  CHECK(found == list);
}

TEST_CASE("the file of another user is not replaced by one of this user") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make a process of another user");
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(::chown(folder.path().c_str(), kNobody, kNobody) == 0);
  const fs::path path = folder.path() / "file";
  write_text(path, "of root");
  OtherUser other([&](int) {
    const auto error = thrown_by([&] { acc::write_file(path, "new", Overwrite::yes); });
    return error && contains(error->what(), "it belongs to user 0 and group 0") ? 0 : 1;
  });
  CHECK(other.wait() == 0);
  CHECK(file_text(path) == "of root");
  CHECK_FALSE(fs::exists(acc::temporary_name(path)));
}

TEST_CASE("a private file of another user is refused, an own one is made private") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  write_text(path, "old");
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  acc::open_private_file(path);
  CHECK((state_of(path).st_mode & 0777) == 0600);
  CHECK(file_text(path) == "old");
  if (::geteuid() == 0) {
    REQUIRE(::chown(path.c_str(), kNobody, kNobody) == 0);
    const auto error = thrown_by([&] { acc::open_private_file(path); });
    REQUIRE(error.has_value());
    CHECK(contains(error->what(), "it belongs to user 65534; remove it"));
  }
}

TEST_CASE("whoever can read a trace does not hold up those who write it") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can make a process of another user");
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const fs::path path = folder.path() / "machine-0.json";
  acc::create_trace_file(path);
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  OtherUser stranger([&](int ready) { return hold_lock(path, ready); });
  stranger.await_ready();
  acc::append_trace_events(path, kEvent);
  CHECK(contains(file_text(path), "{\"name\":\"a\"}"));
  const fs::path lock = path.string() + ".lock";
  OtherUser opens(
      [&](int) { return ::open(lock.c_str(), O_RDONLY) < 0 && errno == EACCES ? 0 : 1; });
  CHECK(opens.wait() == 0);
  acc::end_trace_file(path);
  CHECK_FALSE(fs::exists(lock));
}

TEST_CASE("a lock that is held is named with its holder, and is free when that has ended") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "lock";
  acc::open_private_file(path);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    ::_exit(hold_lock(path, ends[1]));
  }
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  const auto error = thrown_by([&] { FileLock(path, kNoTime); });
  REQUIRE(error.has_value());
  CHECK(contains(error->what(), "cannot lock " + path.string() + " within 0 ms"));
  const std::string named = "process " + std::to_string(holder) + " (";
  CHECK_MESSAGE(contains(error->what(), named), error->what());
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  CHECK_NOTHROW(FileLock(path, kNoTime));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a file that cannot be locked is an error with the reason") {
  const auto error = thrown_by([] { acc::try_lock(UniqueFd(), "/some/lock"); });
  REQUIRE(error.has_value());
  CHECK(std::string(error->what()) == "cannot lock /some/lock: Bad file descriptor");
}
