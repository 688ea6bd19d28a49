// SPDX-License-Identifier: Apache-2.0
// Metrics files as `acclaunch plot` reads them, and the page that it draws.
#include "commands/plot/chart.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using acc::launcher::commands::metrics_page;
using acc::launcher::commands::read_metrics;
using acc::launcher::commands::Run;
using acc::launcher::commands::ticks;
using acc::test::contains;
using acc::test::error_of;
using acc::test::TemporaryFolder;
using acc::test::write_text;

TEST_CASE("a metrics file: steps, numbers, memory of the largest rank, a torn last line") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run.jsonl";
  write_text(path, R"({"step": 3, "loss": 2.5, "strategy": "FULL_SHARD", "ranks": [)"
                   R"({"device_peak_bytes": 0, "peak_rss_bytes": 40}, {"device_peak_bytes": 50}]})"
                   "\n\n"
                   R"({"step": 4, "loss": NaN, "note": "a NaN \" -Infinity", "lr": -Infinity})"
                   "\n"
                   R"({"loss": 1.5, "memory_bytes": 7})"
                   "\n"
                   R"({"step": 6, "lo)");
  const Run run = read_metrics(path);
  CHECK(run.series.size() == 3);
  const auto& loss = run.series.at("loss").points;
  REQUIRE(loss.size() == 3);
  CHECK(loss[0].step == 3.0);
  CHECK(loss[0].value == 2.5);
  CHECK(loss[1].step == 4.0);
  CHECK(std::isnan(loss[1].value));
  CHECK(loss[2].step == 4.0);  // the number of the line, since it has no step
  const auto& memory = run.series.at("memory_bytes").points;
  REQUIRE(memory.size() == 2);
  CHECK(memory[0].value == 50.0);
  CHECK(memory[1].value == 7.0);
  CHECK(run.remarks == std::vector<std::string>{"line 5 is not complete and was left out"});
}

TEST_CASE("a metrics file that is wrong is refused with file, line and what was found") {
  struct Case {
    std::string text;
    std::string message;
  };
  const TemporaryFolder folder;
  const auto path = folder.path() / "run.jsonl";
  for (const auto& [text, message] : {
           Case{"{\"step\": 1}\n[1]\n{\"step\": 2}\n",
                ", line 2: expected a JSON object, found [1]"},
           Case{"step,loss\n1,2\n", ", line 1: expected a JSON object, found step,loss"},
           Case{"{\"step\": 1, \x1b[2J\n", "found {\"step\": 1, \\x1b[2J"},
           Case{"", ": no complete line; expected one JSON object per line"},
           Case{"{\"step\":", ": no complete line; expected one JSON object per line"},
       }) {
    write_text(path, text);
    const std::string error = error_of([&] { return read_metrics(path); });
    CAPTURE(error);
    CHECK(error.starts_with("config: plot: " + path.string()));
    CHECK(contains(error, message));
  }
  CHECK(contains(error_of([&] { return read_metrics(folder.path() / "none"); }),
                 "not_found: cannot read " + (folder.path() / "none").string() +
                     ": No such file or directory"));
  CHECK(contains(error_of([&] { return read_metrics(folder.path()); }),
                 ": it is a folder, not a file"));
}

TEST_CASE("ticks are round numbers within the range") {
  struct Case {
    double low;
    double high;
    std::vector<double> expected;
  };
  for (const auto& [low, high, expected] : {
           Case{0.0, 10.0, {0.0, 2.0, 4.0, 6.0, 8.0, 10.0}},
           Case{1.0, 800.0, {200.0, 400.0, 600.0, 800.0}},
           Case{-3.0, 3.0, {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}},
           Case{990.0, 1010.0, {990.0, 995.0, 1000.0, 1005.0, 1010.0}},
       }) {
    const std::vector<double> found = ticks(low, high);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i] == doctest::Approx(expected[i]));
    }
  }
}

TEST_CASE(
    "a page: names are escaped, values that are not finite interrupt the line and are counted") {
  const double nan = std::nan("");
  const Run a{"a<b>&\"c\"", {{"loss", {{{1, 4.0}, {2, nan}, {3, 2.0}, {4, 1.0}}}}}, {"line 9 <x>"}};
  const Run b{"b", {{"loss", {{{1, 5.0}}}}, {"only_b_bytes", {{{1, 3145728.0}}}}}, {}};
  const std::string page =
      metrics_page(std::vector{a, b}, std::vector<std::string>{"loss", "only_b_bytes"});
  CHECK(contains(page,
                 "a&lt;b&gt;&amp;&quot;c&quot;: 1 at step 4; not finite at 1 step, first at 2"));
  CHECK(contains(page, "line 9 &lt;x&gt;."));
  CHECK(contains(page, "b: 3 MiB at step 1"));
  CHECK_FALSE(contains(page, "a<b>"));
  CHECK_FALSE(contains(page, "nan"));
  CHECK_FALSE(contains(page, "inf"));
  CHECK_FALSE(contains(page, "http"));                   // complete by itself
  CHECK(contains(page, "data-points=\"1 4 3 2 4 1\""));  // for the script that shows values
  // Two parts of the line of `a`: one point, then two.
  const auto path = page.find(" d=\"M", page.find("class=\"line\" stroke=\"#0072b2\""));
  REQUIRE(path != std::string::npos);
  const std::string d = page.substr(path + 4, page.find('"', path + 4) - path - 4);
  CHECK(std::ranges::count(d, 'M') == 2);
  CHECK(std::ranges::count(d, 'L') == 1);
}

TEST_CASE("a page: labels of ticks differ and have a unit") {
  struct Case {
    std::string metric;
    double low;
    double high;
    std::vector<std::string> labels;
  };
  for (const auto& [metric, low, high, labels] : {
           Case{"loss", 2.0001, 2.0003, {"2.00010", "2.00015", "2.00030"}},
           Case{"lr", 0.0, 3e-4, {">0.0e-4<", ">0.5e-4<", ">3.0e-4<"}},
           Case{"tokens_per_s", 0.0, 2e6, {">0.0 M<", ">0.5 M<", ">2.0 M<"}},
           Case{"memory_bytes", 1e9, 3e9, {">1.0 GiB<", ">1.5 GiB<", ">2.5 GiB<"}},
       }) {
    CAPTURE(metric);
    const Run run{"run", {{metric, {{{1, low}, {2'000'000, high}}}}}, {}};
    const std::string page = metrics_page(std::vector{run}, std::vector{metric});
    CHECK(contains(page, ">0.5 M<"));  // steps
    for (const std::string& label : labels) {
      CHECK_MESSAGE(contains(page, label), label);
    }
  }
}

TEST_CASE("a page: a line that would hide another one is drawn in dashes") {
  const auto run = [](const std::string& name, double offset) {
    Run result{name, {}, {}};
    for (int i = 0; i < 100; ++i) {
      result.series["loss"].points.push_back({static_cast<double>(i), 10.0 - 0.1 * i + offset});
    }
    return result;
  };
  const std::string page =
      metrics_page(std::vector{run("a", 0.0), run("b", 1e-4), run("other", 5.0), run("c", 0.0)},
                   std::vector<std::string>{"loss"});
  for (const char* stroke :
       {"class=\"line\" stroke=\"#0072b2\" data-points",
        "class=\"line\" stroke=\"#d55e00\" stroke-dasharray=\"9 18\" stroke-dashoffset=\"-9\" ",
        "class=\"line\" stroke=\"#009e73\" data-points",
        "class=\"line\" stroke=\"#cc79a7\" stroke-dasharray=\"9 18\" stroke-dashoffset=\"-18\" "}) {
    CHECK_MESSAGE(contains(page, stroke), stroke);
  }
}

TEST_CASE("a page of a long run is small and keeps its peaks") {
  Run run{"long", {}, {}};
  auto& points = run.series["loss"].points;
  for (int i = 0; i < 200'000; ++i) {
    points.push_back({static_cast<double>(i), i == 123'457 ? 1000.0 : 1.0});
  }
  const std::string page = metrics_page(std::vector{run}, std::vector<std::string>{"loss"});
  CHECK(page.size() < 40'000);
  CHECK(contains(page, " 0.0L"));  // the row of the largest value: the top of the chart
}
