// SPDX-License-Identifier: Apache-2.0
#include "plan/output_values.hpp"

#include "acc/launcher/host_facts.hpp"
#include "support/errors.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>

namespace acc::launcher {
namespace {

using acc::test::refusal;
using Streams = std::vector<OutputPlan::Streams>;

TEST_CASE("streams by local rank") {
  struct Case {
    std::string text;
    Streams streams;
  };
  for (const auto& [text, streams] : {
           Case{"0", {0, 0, 0, 0}},
           Case{"3", {3, 3, 3, 3}},
           Case{"1:3", {0, 3, 0, 0}},
           Case{"0:1,3:2", {1, 0, 0, 2}},
           Case{"0-2:1", {1, 1, 1, 0}},
           Case{"0-3:3,2:0", {3, 3, 0, 3}},
           Case{"12:3,2:1", {0, 0, 1, 0}},
           Case{"2-15:2", {0, 0, 2, 2}},
       }) {
    CAPTURE(text);
    CHECK(plan::read_streams({text, "-t"}, 4) == streams);
  }
  for (const std::string text :
       {"", "4", "-1", "33", "a", "0:4", "0:", ":3", "1:3,", "2-1:3", "1 :3", "0:1;1:2"}) {
    CAPTURE(text);
    const std::string message = refusal([&] { return plan::read_streams({text, "-t"}, 4); });
    CHECK(message.starts_with("-t must be 0 (none)"));
    CHECK(message.ends_with("got \"" + text + "\""));
  }
}

OutputPlan output_of(const std::string& redirects, const std::string& tee, const std::string& ranks,
                     const std::string& log_dir = "") {
  return plan::plan_output(
      {{redirects, "-r"}, {tee, "-t"}, {ranks, "--local-ranks-filter"}, {log_dir, "--log-dir"}},
      "job/7", 2, "/work", "/tmp/scratch");
}

TEST_CASE("streams to files and to the console") {
  struct Case {
    std::string redirects, tee, ranks;
    Streams to_file, to_console;
  };
  for (const auto& [redirects, tee, ranks, to_file, to_console] : {
           Case{"", "", "", {}, {}},
           Case{"0", "0", "", {}, {}},
           Case{"3", "0", "", {3, 3}, {0, 0}},
           Case{"1:3", "0", "", {0, 3}, {3, 0}},
           Case{"0", "3", "", {3, 3}, {}},
           Case{"3", "1", "", {3, 3}, {1, 1}},
           Case{"0", "0", "1", {}, {0, 3}},
           Case{"0", "3", "0", {3, 3}, {3, 0}},
           Case{"0", "0", "0,1", {}, {}},
       }) {
    CAPTURE(redirects);
    CAPTURE(tee);
    CAPTURE(ranks);
    const OutputPlan output = output_of(redirects, tee, ranks);
    CHECK(output.to_file == to_file);
    CHECK(output.to_console == to_console);
    // Files that the user requested must not be removed.
    CHECK(output.keeps_directory == !to_file.empty());
  }
  CHECK(refusal([] { return output_of("5", "x", "a"); }) ==
        refusal([] { return output_of("5", "", ""); }) + "\n" +
            refusal([] { return output_of("", "x", ""); }) + "\n" +
            "--local-ranks-filter must be local ranks joined by commas, as in 0,2, got \"a\"");
}

TEST_CASE("the folder of a run") {
  std::set<std::string> folders;
  for (int i = 0; i < 20; ++i) {
    const OutputPlan output = output_of("", "", "", "logs");
    CHECK(output.keeps_directory);
    const std::string of_host =
        "/work/logs/job_7_" + host_name() + "_";  // machines may share the folder
    CHECK(output.directory.starts_with(of_host));
    CHECK(output.directory.size() == of_host.size() + std::string("12345678").size());
    folders.insert(output.directory);
  }
  CHECK(folders.size() == 20);
  CHECK(output_of("", "", "", "/var/log/../x").directory.starts_with("/var/x/job_7_"));
  CHECK(output_of("3", "", "").directory.starts_with("/tmp/scratch/job_7_"));
  CHECK(output_of("", "", "").directory == "/tmp/scratch");

  const OutputPlan nowhere = output_of("3", "3", "", "/dev/null");
  CHECK(nowhere.to_file.empty());
  CHECK(nowhere.to_console.empty());
  CHECK_FALSE(nowhere.keeps_directory);
  CHECK(refusal([] { return output_of("", "", "", "/etc/passwd"); }) ==
        "--log-dir must be a folder, not a file, got \"/etc/passwd\"");
}

}  // namespace
}  // namespace acc::launcher
