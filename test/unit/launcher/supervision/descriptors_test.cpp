// SPDX-License-Identifier: Apache-2.0
#include "supervision/descriptors.hpp"

#include "acc/base/error.hpp"
#include "output/worker_targets.hpp"
#include "supervision/worker_process.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

using namespace acc::launcher;
using acc::test::contains;

namespace {

rlimit limit_now() {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit;
}

/// Returns the number of descriptors that a job needs, from the error message for a job that
/// exceeds every possible limit.
std::size_t needed(const std::vector<supervision::WorkerSpec>& workers) {
  const std::string message =
      acc::test::refusal([&] { supervision::require_descriptors(workers, std::size_t{1} << 40); },
                         {acc::Errc::not_supported});
  REQUIRE(contains(message, "needs "));
  return std::stoull(message.substr(message.find("needs ") + 6));
}

}  // namespace

TEST_CASE("descriptors: the number for output depends on its targets") {
  const output::StreamTarget console{"", true};
  const output::StreamTarget file{"a.log", false};
  const output::StreamTarget both{"a.log", true};
  const auto each = [](const output::StreamTarget& out, const output::StreamTarget& err) {
    const output::WorkerTargets worker{out, err};
    return output::descriptors_of({worker, worker, worker}) -
           output::descriptors_of({worker, worker});
  };
  CHECK(each(console, console) == 2);
  CHECK(each(both, both) == 4);
  CHECK(each(file, console) == 3);
  CHECK(each(file, file) == 4);
  output::StreamTarget filtered = console;
  filtered.filter = {{"word"}, "filtered.log"};
  CHECK(each(filtered, filtered) == 2);  // the workers share the filtered file
  CHECK(output::descriptors_of({{filtered, filtered}}) ==
        output::descriptors_of({{console, console}}) + 1);
}

TEST_CASE("descriptors: a job needs one per worker in addition to those for output") {
  const supervision::WorkerSpec piped;
  supervision::WorkerSpec inherits;
  inherits.inherits_output = true;
  CHECK(needed({piped, piped}) == needed({piped}) + 3);
  CHECK(needed({inherits, inherits}) == needed({inherits}) + 1);
}

TEST_CASE("descriptors: the soft limit is raised, and restored at the end") {
  const rlimit before = limit_now();
  const rlimit small{40, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &small) == 0);
  {
    const supervision::DescriptorLimit raised;
    CHECK(raised.original().rlim_cur == 40);
    CHECK(limit_now().rlim_cur == std::min<rlim_t>(before.rlim_max, 65536));
  }
  CHECK(limit_now().rlim_cur == 40);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("descriptors: the error about too few has both numbers and the remedy") {
  CHECK_NOTHROW(supervision::require_descriptors({supervision::WorkerSpec()}, 0));
  const std::string message = acc::test::refusal(
      [] {
        supervision::require_descriptors(std::vector<supervision::WorkerSpec>(32),
                                         std::size_t{1} << 40);
      },
      {acc::Errc::not_supported});
  CAPTURE(message);
  CHECK(message.starts_with("a job of 32 workers needs 10995116"));
  CHECK(contains(message, "hard limit is " + std::to_string(limit_now().rlim_max)));
  CHECK(contains(message, "ulimit -Hn"));
}
