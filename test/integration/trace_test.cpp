// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

// ACC_TRACE: the trace file for Chrome and Perfetto, and the commands that read it and metrics.
namespace {

using nlohmann::json;

json read_trace(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<std::string> training(const std::string& config) {
  const std::string bin = ACC_BIN_DIR;
  const std::string source = ACC_SOURCE_DIR;
  return {bin + "/acclaunch",
          "--config_file",
          source + "/configs/" + config + ".yaml",
          "--cpu",
          "--num_processes",
          "2",
          bin + "/train_gpt",
          "--data",
          source + "/docs",
          "--layers",
          "3",
          "--dim",
          "32",
          "--seq_len",
          "16",
          "--steps",
          "3"};
}

/// Begin and end are whole nanoseconds.
void check_no_overlap(std::vector<json>& spans) {
  const auto ns = [](const json& value) { return std::llround(value.get<double>() * 1000.0); };
  std::ranges::sort(spans, {}, [&](const json& span) { return ns(span.at("ts")); });
  for (std::size_t i = 1; i < spans.size(); ++i) {
    CHECK(ns(spans[i].at("ts")) >= ns(spans[i - 1].at("ts")) + ns(spans[i - 1].at("dur")));
  }
}

/// Returns the names of the launcher's phases in a trace.
std::set<std::string> launcher_phases(const json& trace) {
  std::set<std::string> names;
  for (const json& event : trace) {
    if (event.at("ph") == "X" && event.at("cat") == "launcher") {
      names.insert(event.at("name"));
    }
  }
  return names;
}

const std::set<std::string> kPhases = {
    "plan", "join", "create workers", "until the first output", "after the first output", "end"};

}  // namespace

TEST_CASE("a trace shows the computation, waiting and communication of every rank") {
  const acc::test::TemporaryFolder folder;
  const auto path = folder.path() / "trace.json";
  std::ofstream(path) << "of an earlier run";
  acc::test::Program launcher(training("fsdp_full_shard"),
                              {{"ACC_TRACE", path.string()}, {"ACC_SHM_GATHER", "copy"}});
  REQUIRE_MESSAGE(launcher.wait() == 0, launcher.err());

  std::map<int, std::vector<json>> compute_stream;
  std::map<std::pair<int, std::string>, std::vector<json>> lanes;  // by rank and name of the lane
  std::map<std::pair<int, int>, std::string> lane_of;
  std::map<int, std::set<std::string>> names;
  std::map<int, std::map<std::string, int>> categories;
  std::map<int, int> counters;
  const json trace = read_trace(path);
  for (const json& event : trace) {
    if (event.at("name") == "thread_name") {
      lane_of[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
  }
  std::map<int, std::set<std::string>> ids;  // of collectives
  for (const json& event : trace) {
    if (event.at("ph") == "C") {
      ++counters[event.at("pid")];
      CHECK(event.at("args").at("parameters").get<double>() > 0.0);
      CHECK(event.at("args").at("optimizer").get<double>() > 0.0);
    }
    if (event.at("ph") != "X") {
      continue;
    }
    const int rank = event.at("pid");
    lanes[{rank, lane_of.at({rank, event.at("tid")})}].push_back(event);
    CHECK(event.at("dur").get<double>() >= 0.0);
    names[rank].insert(event.at("name"));
    ++categories[rank][event.at("cat")];
    if (event.at("cat") == "communication") {
      ids[rank].insert(event.at("args").at("collective"));
    } else if (event.at("cat") != "step") {
      compute_stream[rank].push_back(event);
    }
  }
  REQUIRE(categories.size() == 2);
  for (int rank : {0, 1}) {
    CAPTURE(rank);
    for (const std::string name :
         {"forward transformer.h.2", "backward transformer.h.0", "backward root", "optimizer step",
          "for the gather of transformer.h.1", "for the norm of all ranks"}) {
      CHECK_MESSAGE(names[rank].contains(name), name);
    }
    // Collectives name their unit.
    std::set<std::string> with_unit;
    for (const std::string& name : names[rank]) {
      if (const auto of = name.find(" bytes of "); of != std::string::npos) {
        with_unit.insert(name.substr(0, name.find(' ')) + name.substr(of + 6));
      }
    }
    for (const std::string unit :
         {"transformer.h.0", "transformer.h.1", "transformer.h.2", "root"}) {
      CHECK_MESSAGE(with_unit.contains("all_gather of " + unit + ", forward"), unit);
      CHECK_MESSAGE(with_unit.contains("reduce_scatter of " + unit + ", backward"), unit);
    }
    for (const std::string step : {"step 1", "step 2", "step 3"}) {
      CHECK_MESSAGE(names[rank].contains(step), step);
    }
    CHECK(counters[rank] == 3);
    CHECK(ids[rank].size() == static_cast<std::size_t>(categories[rank]["communication"]));
    CHECK(ids[rank] == ids[0]);  // the same collectives on all ranks
    // The ranks compare their models and their optimizers. Then root and three blocks are gathered
    // in the forward pass, the blocks again in the backward pass, and all four are reduced.
    CHECK(categories[rank]["communication"] == 2 + 3 * (4 + 3 + 4));
    // Nothing overlaps on the compute stream, nor in a lane; Perfetto drops what does.
    check_no_overlap(compute_stream[rank]);
    for (const std::string lane : {"compute", "optimizer", "wait", "gather", "reduce"}) {
      CHECK_MESSAGE(lanes.contains({rank, lane}), lane);
    }
  }
  for (auto& [lane, spans] : lanes) {
    CAPTURE(lane.second);
    check_no_overlap(spans);
  }
}

TEST_CASE("a trace shows the waits for whole gradients, and the unit of every collective") {
  for (const std::string config : {"fsdp_no_shard", "zero1", "zero2"}) {
    CAPTURE(config);
    const acc::test::TemporaryFolder folder;
    const auto path = folder.path() / "trace.json";
    acc::test::Program launcher(training(config), {{"ACC_TRACE", path.string()}});
    REQUIRE_MESSAGE(launcher.wait() == 0, launcher.err());
    std::map<int, int> waits;
    for (const json& event : read_trace(path)) {
      if (event.at("name").get<std::string>().starts_with("for the reduction of ")) {
        ++waits[event.at("pid")];
      }
      if (event.value("cat", "") == "communication") {  // at the start the ranks compare the model
        const std::string name = event.at("name");
        CHECK_MESSAGE((name.find(" bytes of ") != std::string::npos || name.ends_with(", start")),
                      name);
      }
    }
    if (config != "zero2") {  // which does not wait for whole gradients
      CHECK(waits == std::map<int, int>{{0, 3 * 4}, {1, 3 * 4}});  // steps, units
    }
  }
}

TEST_CASE("a trace shows the launcher's phases for a program without the runtime") {
  const acc::test::TemporaryFolder folder;
  const std::string acclaunch = ACC_BIN_DIR "/acclaunch";
  // Each attempt has workers; the file of an earlier run is replaced.
  std::ofstream(folder.path() / "machine-0.json") << "of an earlier run";
  acc::test::Program launcher({acclaunch, "torchrun", "--nproc-per-node", "1", "--max-restarts",
                               "1", "--trace", folder.path(), "--no-python", "sh", "-c",
                               "echo begin; exit $((1 - TORCHELASTIC_RESTART_COUNT))"});
  REQUIRE_MESSAGE(launcher.wait() == 0, launcher.err());
  const json trace = read_trace(folder.path() / "machine-0.json");
  CHECK(launcher_phases(trace) == kPhases);
  std::map<std::string, std::vector<json>> by_name;
  for (const json& event : trace) {
    by_name[event.at("name")].push_back(event);
  }
  CHECK(by_name["create workers"].size() == 2);
  CHECK(by_name["until the first output"].size() == 2);
  const auto begin = [](const json& event) { return event.at("ts").get<double>(); };
  const auto end = [&](const json& event) { return begin(event) + event.at("dur").get<double>(); };
  CHECK(end(by_name["plan"].front()) <= begin(by_name["join"].front()));
  CHECK(end(by_name["join"].front()) <= begin(by_name["create workers"].front()));
  CHECK(end(by_name["after the first output"].back()) <= begin(by_name["end"].front()) + 0.001);

  acc::test::Program summary({acclaunch, "trace", "summary", folder.path()});
  REQUIRE_MESSAGE(summary.wait() == 0, summary.err());
  for (const std::string& phase : kPhases) {
    CHECK_MESSAGE(summary.out().find("  " + phase + "\n") != std::string::npos, summary.out());
  }
  CHECK(summary.out().find("per step") == std::string::npos);  // no rank has a timeline
}

TEST_CASE("acclaunch trace and acclaunch plot read what a training wrote") {
  const acc::test::TemporaryFolder folder;
  const std::string trace = folder.path() / "run" / "trace" / "machine-0.json";
  const std::string metrics = folder.path() / "metrics.jsonl";
  std::vector<std::string> command = training("fsdp_full_shard");
  command.insert(command.begin() + 1, {"--trace", folder.path() / "run" / "trace"});
  command.insert(command.end(), {"--metrics", metrics, "--save", folder.path() / "checkpoint"});
  acc::test::Program launcher(command);
  REQUIRE_MESSAGE(launcher.wait() == 0, launcher.err());

  const std::string acclaunch = ACC_BIN_DIR "/acclaunch";
  acc::test::Program summary({acclaunch, "trace", "summary", "--json", trace});
  REQUIRE_MESSAGE(summary.wait() == 0, summary.err());
  const json ranks = json::parse(summary.out());
  REQUIRE(ranks.size() == 2);
  for (const json& rank : ranks) {
    CAPTURE(rank.dump());
    CHECK(rank.at("steps") == 3);
    for (const char* part : {"forward_ms", "backward_ms", "optimizer_ms", "checkpoint_ms"}) {
      CHECK(rank.at(part).get<double>() > 0.0);
    }
    CHECK(rank.at("exposed_ms").get<double>() < rank.at("total_ms").get<double>());
  }
  std::set<std::string> phases = kPhases;
  phases.insert("without output");  // of rank 1
  CHECK(launcher_phases(read_trace(trace)) == phases);

  const std::string merged = folder.path() / "merged.json";
  acc::test::Program merge(
      {acclaunch, "trace", "merge", folder.path() / "run" / "trace", "-o", merged});
  REQUIRE_MESSAGE(merge.wait() == 0, merge.err());
  const json all = read_trace(merged);
  json without_arrows = json::array();
  std::ranges::copy_if(all, std::back_inserter(without_arrows),
                       [](const json& event) { return event.value("cat", "") != "collective"; });
  CHECK(without_arrows == read_trace(trace));
  CHECK(all.size() > without_arrows.size());
  acc::test::Program again({acclaunch, "trace", "merge", trace, "-o", merged});
  CHECK(again.wait() == 2);  // the file exists

  const std::string page = folder.path() / "page.html";
  acc::test::Program plot({acclaunch, "plot", metrics, "-o", page});
  REQUIRE_MESSAGE(plot.wait() == 0, plot.err());
  std::ifstream file(page);
  const std::string html{std::istreambuf_iterator<char>(file), {}};
  for (const char* metric : {"loss", "tokens_per_s", "memory_bytes", "grad_norm", "lr"}) {
    CHECK(html.find("<h2>" + std::string(metric) + "</h2>") != std::string::npos);
  }
  acc::test::Program unknown(
      {acclaunch, "plot", metrics, "-o", page, "--overwrite", "--metric", "los"});
  CHECK(unknown.wait() == 2);
  CHECK(unknown.err().find("plot: --metric los: no run has it, expected one of") !=
        std::string::npos);
}

TEST_CASE("a trace that cannot be written ends the job with status 2 and the path") {
  acc::test::Program launcher(training("zero2"), {{"ACC_TRACE", "/nowhere/trace.json"}});
  CHECK(launcher.wait() == 2);
  CHECK(launcher.err().find("ACC_TRACE: cannot write /nowhere/trace.json") != std::string::npos);
}

TEST_CASE("metrics that cannot be opened end the training with an error") {
  std::vector<std::string> command = training("fsdp_full_shard");
  *std::ranges::find(command, "2") = "1";  // one rank, so that no other rank is the root cause
  command.insert(command.end(), {"--metrics", "/nowhere/metrics"});
  acc::test::Program launcher(command);
  CHECK(launcher.wait() == 2);
  CHECK(launcher.err().find("cannot write the metrics file /nowhere/metrics: No such file") !=
        std::string::npos);
}
