// SPDX-License-Identifier: Apache-2.0
#include "support/file_faults.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using acc::test::contains;
using acc::test::FileFault;
using acc::test::Program;
using acc::test::TemporaryFolder;
using Words = std::vector<std::string>;

Words names_in(const fs::path& folder) {
  Words names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

constexpr const char* kSmall = "scheduler.bin";  // a file that checkpoint_saver writes

/// Saves and reads checkpoints with checkpoint_saver, in a temporary folder.
struct Saver {
  explicit Saver(std::string how) : mode(std::move(how)), folder(top.path() / "all") {
    fs::create_directory(folder);
  }

  [[nodiscard]] std::string saver_mode() const { return mode.substr(0, mode.find(' ')); }
  [[nodiscard]] Words save_command(int value) const {
    const fs::path target = mode == "series" ? folder : folder / "c";
    return {ACC_CHECKPOINT_SAVER, saver_mode(), target.string(), std::to_string(value), "2"};
  }
  void save(int value) const {
    Program program(save_command(value));
    REQUIRE_MESSAGE(program.wait() == 0, program.err());
  }
  /// Returns the newest checkpoint's value, or 0 if there is none. Checks all its bytes.
  [[nodiscard]] int value() const {
    const fs::path target = mode == "series" ? folder : folder / "c";
    Program program({ACC_CHECKPOINT_SAVER, "show", saver_mode(), target.string()});
    REQUIRE_MESSAGE(program.wait() == 0, program.err());
    return program.out() == "none\n" ? 0 : std::stoi(program.out());
  }
  /// True if the checkpoint that `latest` names exists.
  [[nodiscard]] bool latest_is_true() const {
    const fs::path latest = folder / "latest";
    return !fs::exists(latest) || fs::exists(folder / acc::test::file_text(latest.string()));
  }
  [[nodiscard]] Words top_names() const {
    Words names = names_in(folder);
    std::erase_if(names, [](const std::string& name) { return contains(name, "/"); });
    return names;
  }

  TemporaryFolder top;
  std::string mode;
  fs::path folder;
};

/// Runs one save with a fault injected at system call number `fault.at`. True if it was reached.
bool struck(const Saver& saver, FileFault fault, int& value) {
  const int older = saver.value();
  const Words before = names_in(saver.folder);
  fs::remove(fault.hit);
  auto variables = fault.variables();
  if (saver.mode == "replace in steps") {
    variables["ACC_NO_EXCHANGE"] = "EINVAL";
  } else if (saver.mode == "replace in place") {
    variables["ACC_NO_EXCHANGE"] = "EXDEV";
  }
  Program program(saver.save_command(++value), variables);
  const int status = program.wait();
  const bool hit = fs::exists(fault.hit);
  CAPTURE(acc::test::file_text(fault.hit.string()));
  CAPTURE(program.err());
  const int found = saver.value();
  CHECK((found == older || found == value));
  CHECK(saver.latest_is_true());
  if (!hit) {
    CHECK(status == 0);
    CHECK(found == value);
  } else if (fault.what == "kill") {
    CHECK(status == 128 + SIGKILL);
  } else if (status != 0) {  // a fault in fallocate, for example, does not fail the save
    CHECK(status == 2);
    CHECK(contains(program.err(), fault.reason()));
    CHECK(contains(program.err(), saver.folder.string()));
    const Words after = names_in(saver.folder);
    // Without an atomic exchange of folders both exist: the newer one, which readers use, and the
    // older one.
    const bool has_steps = saver.mode.starts_with("replace in ");
    CHECK(std::ranges::none_of(after, [&](const std::string& name) {
      return !(has_steps && contains(name, "acc-tmp.removed")) &&
             (contains(name, "tmp") || (contains(name, "acc-new") && !has_steps));
    }));
  }
  return hit;
}

/// Injects a fault at every system call of a save in turn. After each fault the next save succeeds.
int strike_everywhere(const std::string& mode, const std::string& what) {
  const Saver saver(mode);
  FileFault fault{.what = what, .under = saver.folder, .hit = saver.top.path() / "hit"};
  int value = 0;
  while (struck(saver, fault, value)) {
    saver.save(++value);
    CHECK(saver.value() == value);
    const Words names = saver.top_names();
    if (mode == "series") {
      CHECK(names.size() <= 3);  // two checkpoints and `latest`
      CHECK(saver.latest_is_true());
    } else {
      CHECK(names == Words{"c"});
    }
    ++fault.at;
  }
  return fault.at - 1;
}

}  // namespace

TEST_CASE("killed or out of room at any call, a save leaves the older checkpoint or the new one") {
  for (const std::string mode : {"series", "replace", "replace in steps", "replace in place"}) {
    for (const std::string what : {"kill", "ENOSPC", "EIO"}) {
      CAPTURE(mode);
      CAPTURE(what);
      const int points = strike_everywhere(mode, what);
      MESSAGE(mode, ", ", what, ": ", points, " points");
      CHECK(points > 5);
    }
  }
}

namespace {

struct Call {
  std::string name, path;
};

std::vector<Call> calls_of(const fs::path& log) {
  std::ifstream file(log);
  std::vector<Call> calls;
  for (Call call; file >> call.name >> call.path;) {
    calls.push_back(call);
  }
  return calls;
}

// Returns the number of the last call with one of those names on that path; -1 if there is none.
int last(const std::vector<Call>& calls, const std::string& path, const Words& names) {
  for (int i = static_cast<int>(calls.size()) - 1; i >= 0; --i) {
    const Call& call = calls[static_cast<std::size_t>(i)];
    if (call.path == path && std::ranges::find(names, call.name) != names.end()) {
      return i;
    }
  }
  return -1;
}

}  // namespace

TEST_CASE("all data of a checkpoint is on the disk before its name is") {
  for (const std::string mode : {"series", "replace"}) {
    CAPTURE(mode);
    const Saver saver(mode);
    saver.save(1);
    const FileFault none{.what = "kill",
                         .at = 1 << 20,
                         .under = saver.folder,
                         .hit = saver.top.path() / "hit",
                         .log = saver.top.path() / "log"};
    Program program(saver.save_command(2), none.variables());
    REQUIRE_MESSAGE(program.wait() == 0, program.err());
    const std::vector<Call> calls = calls_of(saver.top.path() / "log");
    const fs::path target = fs::canonical(saver.folder) / (mode == "series" ? "checkpoint_1" : "c");
    const int named = last(calls, target, {"rename", "renameat2"});
    REQUIRE(named >= 0);
    int files = 0;
    for (const Call& call : calls) {
      if (call.path.starts_with(target.string() + ".acc-tmp.") &&
          (call.name == "write" || call.name.starts_with("open") || call.name == "mkdir")) {
        CAPTURE(call.name);
        CAPTURE(call.path);
        const int flushed = last(calls, call.path, {"fsync"});
        CHECK(flushed > last(calls, call.path, {"write"}));
        CHECK(flushed < named);
        const std::string parent = fs::path(call.path).parent_path();
        CHECK((parent == saver.folder || last(calls, parent, {"fsync"}) > flushed));
        files += call.name == "write" ? 1 : 0;
      }
    }
    CHECK(files >= 3);
    CHECK(last(calls, fs::canonical(saver.folder), {"fsync"}) > named);
    const std::string latest = fs::canonical(saver.folder) / "latest";
    if (mode == "series") {
      CHECK(last(calls, latest, {"rename"}) > last(calls, latest + ".acc-tmp", {"fsync"}));
      CHECK(last(calls, latest + ".acc-tmp", {"fsync"}) >
            last(calls, latest + ".acc-tmp", {"write"}));
      CHECK(last(calls, latest, {"rename"}) > named);
    }
  }
}

TEST_CASE("an older checkpoint that cannot be removed stays, the save succeeds, the next retries") {
  struct Row {
    const char* mode;
    const char* target;  // the file or folder that cannot be removed
    const char* what;
  };
  const Row rows[] = {
      {"series", "checkpoint_0", "EXDEV"},    {"series", "checkpoint_0", "EPERM"},
      {"series", "checkpoint_0", "EBUSY"},    {"series", "checkpoint_0", "ENOTEMPTY"},
      {"replace", "c.acc-tmp.", "EPERM"},     {"replace", "c.acc-tmp.", "EBUSY"},
      {"replace", "c.acc-tmp.", "ENOTEMPTY"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.mode);
    CAPTURE(row.what);
    const Saver saver(row.mode);
    const bool is_series = saver.mode == "series";
    auto command = [&](int value) {
      Words words = saver.save_command(value);
      words.back() = "1";  // total limit of the series
      return words;
    };
    REQUIRE(Program(command(1)).wait() == 0);
    const FileFault fault{
        .what = row.what, .under = saver.folder / row.target, .hit = saver.top.path() / "hit"};
    for (const int value : {2, 3}) {
      Program program(command(value), fault.variables());
      const int status = program.wait();
      CAPTURE(program.err());
      CHECK(status == 0);
      CHECK(contains(program.err(), row.target));
      CHECK(contains(program.err(), ": " + fault.reason()));
      CHECK(saver.value() == value);
      CHECK(saver.latest_is_true());
    }
    REQUIRE(Program(command(4)).wait() == 0);
    CHECK(saver.value() == 4);
    CHECK(saver.top_names() == (is_series ? Words{"checkpoint_3", "latest"} : Words{"c"}));
  }
}

namespace {

/// Returns the output of a shell script in a folder with a tmpfs of that size.
std::string on_disk_of(const std::string& size, const std::string& script) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  Program program({"/usr/bin/unshare", "-m", "/bin/sh", "-c",
                   "cd " + at + " && mount -t tmpfs -o size=" + size + " none . && cd " + at +
                       " && " + script});
  program.wait();
  return program.out() + program.err();
}

}  // namespace

TEST_CASE("checkpoints of the lower layer of an overlayfs are replaced, and stay in their series") {
  const std::string mount =
      "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all";
  const std::string folders = "mkdir lower upper work all; ";
  if (on_disk_of("10m", folders + mount + " && echo mounted") != "mounted\n") {
    MESSAGE("skipped: this machine does not allow mounting an overlayfs");
    return;
  }
  const std::string saver = std::string(ACC_CHECKPOINT_SAVER) + " ";
  const std::string out =
      on_disk_of("10m", folders + saver + "series lower/s 1 1; " + saver + "replace lower/c 1; " +
                            mount + "; " + saver + "series all/s 2 1 2>err; echo $?; cat err; " +
                            saver + "show series all/s; " + saver + "replace all/c 2; echo $?; " +
                            saver + "show replace all/c; ls -A all all/s");
  CAPTURE(out);
  CHECK(contains(out,
                 "checkpoint_0.acc-tmp.removed: Invalid cross-device link\n"
                 "2 checkpoint_1\n0\n2 c\nall:\nc\ns\n\n"
                 "all/s:\ncheckpoint_0\ncheckpoint_1\nlatest\n"));
  CHECK(out.starts_with("0\ncannot rename all/s/checkpoint_0 to "));
}

TEST_CASE("a checkpoint with an immutable file does not block its series") {
  const Saver saver("series");
  saver.save(1);
  const std::string file = (saver.folder / "checkpoint_0" / kSmall).string();
  if (Program({"/usr/bin/chattr", "+i", file}).wait() != 0) {
    MESSAGE("skipped: immutable files are not supported or not permitted here");
    return;
  }
  Words command = saver.save_command(2);
  command.back() = "1";
  Program program(command);
  const int status = program.wait();
  const Words names = names_in(saver.folder);
  const std::string left = "checkpoint_0.acc-tmp.removed/";
  REQUIRE(Program({"/usr/bin/chattr", "-i", saver.folder / (left + kSmall)}).wait() == 0);
  CAPTURE(program.err());
  CHECK(status == 0);
  CHECK(contains(program.err(), left + kSmall + ": Operation not permitted"));
  // Everything that can be removed is removed; the large file uses no disk space.
  CHECK(std::ranges::count_if(
            names, [&](const std::string& name) { return name.starts_with(left); }) == 1);
  saver.save(3);
  CHECK(saver.top_names() == Words{"checkpoint_1", "checkpoint_2", "latest"});
}

TEST_CASE("a disk that is too small for the new checkpoint keeps the old one") {
  if (on_disk_of("1m", "echo mounted") != "mounted\n") {
    MESSAGE("skipped: this machine does not allow mounting a tmpfs");
    return;
  }
  // A temporary folder next to it would be on another file system.
  CHECK(contains(on_disk_of("1m", std::string(ACC_CHECKPOINT_SAVER) + " replace . 1; echo $?"),
                 "2\ncannot replace "));
  struct Row {
    const char* size;
    const char* mode;
    bool fits;
  };
  // Two checkpoints need 216 KiB, `latest` 4 KiB, and the file that replaces it 4 KiB.
  const Row rows[] = {
      {"200k", "replace", false}, {"212k", "replace", false}, {"216k", "replace", true},
      {"200k", "series", false},  {"212k", "series", false},  {"220k", "series", false},
      {"224k", "series", true},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.size));
    CAPTURE(std::string(row.mode));
    const std::string saver = std::string(ACC_CHECKPOINT_SAVER) + " ";
    const std::string target = std::string(row.mode) + " a ";
    const std::string out =
        on_disk_of(row.size, saver + target + "1 1; " + saver + target + "2 1; echo status $?; " +
                                 saver + "show " + target + "; find . -name '*tmp*'");
    CAPTURE(out);
    const std::string name = std::string(row.mode) == "replace" ? "a"
                             : row.fits                         ? "checkpoint_1"
                                                                : "checkpoint_0";
    if (row.fits) {
      CHECK(out == "status 0\n2 " + name + "\n");
    } else {
      CHECK(out.starts_with("status 2\n1 " + name + "\n" + "cannot "));  // nothing left behind
      CHECK(contains(out, ": No space left on device"));
    }
  }
}
