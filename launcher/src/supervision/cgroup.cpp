// SPDX-License-Identifier: Apache-2.0
// Linux describes control groups in two files. /proc/PID/cgroup gives the group's name within the
// hierarchy; /proc/PID/mountinfo says where that hierarchy is mounted, and which part of it. The
// folder of a group is the mount point followed by the name.
#include "supervision/cgroup.hpp"

#include "spawn/create_child.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>

namespace acc::launcher::supervision {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string root;  ///< name of the group that is visible at the mount point
  std::string point;
};

/// True if `word` is an element of the comma-separated `list`, such as "cpu,cpuacct".
bool lists(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// Returns the mount of the version 2 hierarchy, or of the version 1 hierarchy of `controller`.
/// Both versions may be mounted at the same time.
std::optional<Mount> cgroup_mount(const fs::path& mountinfo, const std::string& controller) {
  const std::string type = controller.empty() ? " - cgroup2 " : " - cgroup ";
  std::ifstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::string skipped;
    Mount mount;
    // "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    std::istringstream(line) >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    if (line.find(type) != std::string::npos &&
        (controller.empty() || lists(line.substr(line.rfind(' ') + 1), controller))) {
      return mount;
    }
  }
  return std::nullopt;
}

bool made(const fs::path& folder) noexcept {
  if (::mkdir(folder.c_str(), 0755) == 0) {
    return true;
  }
  // An earlier launcher with the same pid left an empty group: all its processes were killed at
  // the same time, so that none could clean up.
  return errno == EEXIST && ::rmdir(folder.c_str()) == 0 && ::mkdir(folder.c_str(), 0755) == 0;
}

/// Removes a group whose processes have ended. A process leaves its group when the kernel switches
/// to another one for the last time, which may be long after it was reaped on a busy machine, and
/// rmdir reports EBUSY until then.
void remove_empty(const fs::path& folder) noexcept {
  constexpr timespec kPause{0, 1'000'000};  // 1 ms
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (::rmdir(folder.c_str()) != 0 && errno == EBUSY &&
         std::chrono::steady_clock::now() < deadline) {
    ::nanosleep(&kPause, nullptr);
  }
}

/// Removes the groups that workers created below `folder` first: a group that has children cannot
/// be removed.
void remove_tree(const fs::path& folder) {
  std::error_code gone;
  for (fs::directory_iterator entry(folder, gone), end; !gone && entry != end;
       entry.increment(gone)) {
    if (entry->is_directory(gone)) {
      remove_tree(entry->path());
    }
  }
  remove_empty(folder);
}

}  // namespace

std::string cgroup_name(const fs::path& cgroup, const std::string& controller) {
  std::ifstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/job", "0::/user.slice"
    const std::size_t list = line.find(':') + 1;
    const std::size_t name = line.find(':', list) + 1;
    if (list != 0 && name != 0 &&
        (controller.empty() ? line.starts_with("0::")
                            : lists(line.substr(list, name - 1 - list), controller))) {
      return line.substr(name);
    }
  }
  return {};
}

fs::path cgroup_folder(const fs::path& mountinfo, std::string name, const std::string& controller) {
  const std::optional<Mount> mount = cgroup_mount(mountinfo, controller);
  if (!mount || name.empty()) {
    return {};
  }
  if (mount->root != "/") {  // a part of the tree is mounted, as in some containers
    if (!(name + "/").starts_with(mount->root + "/")) {
      return {};
    }
    name.erase(0, mount->root.size());
  }
  return mount->point + name;
}

Cgroup::Cgroup(const std::string& name)
    : path_(cgroup_folder("/proc/self/mountinfo", cgroup_name("/proc/self/cgroup"))) {
  if (!path_.empty()) {
    path_ /= name;
  }
}

void Cgroup::make() noexcept {
  if (!path_.empty() && made(path_)) {
    directory_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  if (directory_ && !lets_live()) {
    directory_.reset();
  }
}

// True if a process that is created in the group survives. Linux 6.18 counts the uses of
// cgroup.kill per group (kill_seq), and kills a new process at once if the counts of its group and
// of the forking process's group differ. If cgroup.kill was ever used on the launcher's own group,
// every worker in a new group would die, so a test process is created first.
bool Cgroup::lets_live() const noexcept {
  const pid_t child = fork_into();
  if (child == 0) {
    ::_exit(0);
  }
  if (child < 0) {
    return true;
  }
  const std::optional<int> wait_status = spawn::reap_within(child, std::chrono::seconds(10));
  if (!wait_status) {  // stopped
    ::kill(child, SIGKILL);
    spawn::reap_within(child, spawn::kTimeAfterKill);
  }
  return wait_status && !WIFSIGNALED(*wait_status);
}

pid_t Cgroup::fork_into() const noexcept {
  return spawn::fork_into(directory_.get());
}

void Cgroup::kill() const noexcept {
  if (path_.empty()) {
    return;
  }
  const UniqueFd all(::open((path_ / "cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (all && ::write(all.get(), "1", 1) == 1) {
    return;
  }
  // Before Linux 5.14. A process that forks meanwhile may escape; `end_descendants` repeats.
  std::ifstream processes(path_ / "cgroup.procs");
  for (pid_t pid = 0; processes >> pid;) {
    if (pid > 0) {  // 0: a process of another pid namespace; kill() would end our own group
      ::kill(pid, SIGKILL);
    }
  }
}

void Cgroup::remove() noexcept {
  directory_.reset();
  if (!path_.empty()) {
    remove_tree(path_);
  }
}

}  // namespace acc::launcher::supervision
