// SPDX-License-Identifier: Apache-2.0
#include "supervision/descendants.hpp"

#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

using acc::launcher::supervision::descendants;

namespace {

namespace fs = std::filesystem;

/// Creates the files of process `pid` in a simulated /proc. `children`: content of its list of
/// child processes; null if the kernel has no such lists.
void write_process(const fs::path& proc, int pid, const std::string& stat, const char* children) {
  const fs::path task = proc / std::to_string(pid) / "task" / std::to_string(pid);
  fs::create_directories(task);
  std::ofstream(proc / std::to_string(pid) / "stat") << stat;
  if (children != nullptr) {
    std::ofstream(task / "children") << children;
  }
}

}  // namespace

TEST_CASE("descendants: read from lists of children, or else from each process's parent") {
  for (const bool has_lists : {true, false}) {
    CAPTURE(has_lists);
    const acc::test::TemporaryFolder proc;
    const auto list = [has_lists](const char* text) { return has_lists ? text : nullptr; };
    write_process(proc.path(), 10, "10 (a) S 1 10", list("11 12 "));
    write_process(proc.path(), 11, "11 (b (c) d) S 10 10", list("13 "));
    write_process(proc.path(), 12, "12 () Z 10 10", list(""));
    write_process(proc.path(), 13, "13 (e) S 11 10", list(""));
    write_process(proc.path(), 14, "14 (f) S 1 10", list(""));
    fs::create_directory_symlink("10", proc.path() / "self");
    std::vector<pid_t> found = descendants(10, proc.path());
    CHECK(found.back() == 13);  // parents precede their children
    std::ranges::sort(found);
    CHECK(found == std::vector<pid_t>{11, 12, 13});
    CHECK(descendants(12, proc.path()).empty());
    const auto of_init = descendants(1, proc.path());
    CHECK(std::ranges::count(of_init, 0) == 0);
  }
}
