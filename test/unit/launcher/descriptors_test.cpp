#include "supervision/descriptors.hpp"

#include "acc/base/error.hpp"
#include "supervision/worker_process.hpp"
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

WorkerSpec with_targets(const StreamTarget& out, const StreamTarget& err) {
  WorkerSpec spec;
  spec.targets = {out, err};
  return spec;
}

}  // namespace

TEST_CASE("descriptors: what a job needs follows from where its output goes") {
  const StreamTarget console{"", true};
  const StreamTarget file{"a.log", false};
  const StreamTarget both{"a.log", true};
  const auto each = [](const WorkerSpec& spec) {
    return descriptors_for({spec, spec, spec}) - descriptors_for({spec, spec});
  };
  CHECK(each(with_targets(console, console)) == 3);
  CHECK(each(with_targets(both, both)) == 5);
  CHECK(each(with_targets(file, console)) == 2);
  CHECK(each(with_targets(file, file)) == 1);
  StreamTarget filtered = console;
  filtered.filter = {{"word"}, "filtered.log"};
  CHECK(each(with_targets(filtered, filtered)) == 3);  // the workers share that file
  CHECK(descriptors_for({with_targets(filtered, filtered)}) ==
        descriptors_for({with_targets(console, console)}) + 1);
  WorkerSpec inherits;
  inherits.inherits_output = true;
  CHECK(each(inherits) == 1);
}

TEST_CASE("descriptors: the soft limit is raised, and put back") {
  const rlimit before = limit_now();
  const rlimit small{40, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &small) == 0);
  {
    const DescriptorLimit raised;
    CHECK(raised.original().rlim_cur == 40);
    CHECK(limit_now().rlim_cur == std::min<rlim_t>(before.rlim_max, 65536));
  }
  CHECK(limit_now().rlim_cur == 40);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("descriptors: too few are refused with both numbers and the remedy") {
  CHECK_NOTHROW(require_descriptors(1, 1));
  try {
    require_descriptors(std::size_t{1} << 40, 32);
    FAIL("not refused");
  } catch (const acc::Error& error) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(error.code() == acc::Errc::config);
    CHECK(message.starts_with("a job of 32 workers needs 10995116"));
    CHECK(contains(message, "hard limit is " + std::to_string(limit_now().rlim_max)));
    CHECK(contains(message, "ulimit -Hn"));
  }
}
