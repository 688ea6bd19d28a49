// SPDX-License-Identifier: Apache-2.0
#include "job/phases.hpp"

#include "acc/base/trace_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>

namespace fs = std::filesystem;
using acc::test::contains;
using acc::test::file_text;

TEST_CASE("phases: the lock of the trace is removed, also if the last write fails") {
  for (const bool is_full : {false, true}) {
    CAPTURE(is_full);
    const acc::test::TemporaryFolder folder;
    const std::string path = folder.path() / "machine-0.json";
    acc::create_trace_file(path);
    acc::append_trace_events(path, "{\"name\":\"of a rank\"},\n");
    REQUIRE(fs::exists(path + ".lock"));
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
    if (is_full) {
      const rlimit small{fs::file_size(path), limit.rlim_max};
      ::signal(SIGXFSZ, SIG_IGN);
      REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    }
    acc::launcher::job::Phases phases(true);
    const auto error = acc::test::thrown_by([&] { phases.finish(path, 0, "node0"); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    ::signal(SIGXFSZ, SIG_DFL);
    CHECK(error.has_value() == is_full);
    CHECK(contains(file_text(path), "of a rank"));
    CHECK(contains(file_text(path), "launcher on node0") == !is_full);
    CHECK_FALSE(fs::exists(path + ".lock"));
  }
}
