// SPDX-License-Identifier: Apache-2.0
#include "support/left_behind.hpp"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

namespace acc::test {
namespace {

constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;  // PROC_PID_INIT_INO of the kernel

/// Reaps the children that have ended, and returns the others.
std::vector<pid_t> running_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  const std::string self = std::to_string(::getpid());
  std::ifstream children("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; children >> pid;) {
    pids.push_back(pid);
  }
  return pids;
}

std::string name_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return "process " + name;
}

}  // namespace

std::filesystem::path control_group_of(pid_t launcher) {
  // As the launcher names it: launchers of other pid namespaces may have the same pid.
  struct stat space {};
  ::stat("/proc/self/ns/pid", &space);
  const std::string name =
      "acclaunch-" + std::to_string(launcher) +
      (space.st_ino == kFirstPidNamespace ? "" : "." + std::to_string(space.st_ino));
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {  // "4:memory:/job", "0::/job"
    const std::size_t controller = line.find(':') + 1;
    const std::size_t group = line.find(':', controller);
    for (const std::string& mount : {std::string(), std::string("/unified"),
                                     "/" + line.substr(controller, group - controller)}) {
      const std::filesystem::path folder =
          std::filesystem::path("/sys/fs/cgroup" + mount + line.substr(group + 1)) / name;
      if (std::error_code none; std::filesystem::exists(folder, none)) {
        return folder;
      }
    }
  }
  return {};
}

void remove_control_group(const std::filesystem::path& group) {
  // The kernel refuses it for a moment after the end of the last process, and tells nobody when it
  // is over.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (::rmdir(group.c_str()) != 0 && errno == EBUSY &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

JobPlace::JobPlace() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

JobPlace::~JobPlace() {
  for (auto pids = running_children(); !pids.empty(); pids = running_children()) {
    for (const pid_t pid : pids) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
}

std::string JobPlace::left(const Program& launcher) const {
  std::string found;
  for (const pid_t pid : running_children()) {
    found += name_of(pid) + ", ";
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    found += entry.path().filename().string() + ", ";
  }
  if (!control_group_of(launcher.pid()).empty()) {
    found += "a control group, ";
  }
  if (port_.has_listener()) {
    found += "a listening socket, ";
  }
  return found.empty() ? "nothing" : found.substr(0, found.size() - 2);
}

std::string JobPlace::left_at_last(const Program& launcher) const {
  // The end of a process can make its children ours, so this repeats until there is none.
  bool ended = true;
  for (auto pids = running_children(); ended && !pids.empty(); pids = running_children()) {
    Watched orphans;
    for (const pid_t pid : pids) {
      orphans.add(pid);
    }
    ended = orphans.all_end();
  }
  return left(launcher);
}

}  // namespace acc::test
