// SPDX-License-Identifier: Apache-2.0
// acclaunch compare on synthetic recordings: reading, putting ranks together, the first difference
// and its causes.
#include "commands/compare/compare.hpp"

#include "commands/compare/run.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <functional>
#include <random>

using namespace acc::launcher::commands::compare;
using acc::test::contains;
using acc::test::error_of;
using acc::test::TemporaryFolder;
using acc::test::write_text;

namespace {

using Line = nlohmann::ordered_json;

/// A training of two linear modules on eight rows per step, as a recorder would write it.
struct ToyTraining {
  int ranks = 1;
  int micro_steps = 1;
  int steps = 3;
  bool sharded = false;  ///< each rank has its part of the parameters
  std::string prefix{};  ///< of all names
  std::string dtype = "float32";
  /// Changes a line, or removes it by making it null.
  std::function<void(int rank, Line& line)> change = [](int, Line&) {};
};

/// Four numbers that belong to a name and a step.
std::vector<double> numbers_of(const std::string& name, int step) {
  std::mt19937 generator(static_cast<unsigned>(std::hash<std::string>{}(name)) +
                         1000U * static_cast<unsigned>(step));
  std::normal_distribution<double> normal;
  return {normal(generator), normal(generator), normal(generator), normal(generator)};
}

Line tensor(const ToyTraining& toy, int step, int micro_step, const char* phase,
            const std::string& name, double share, double factor = 1.0) {
  Line sketch = Line::array();
  for (const double number : numbers_of(name + phase, step)) {
    sketch.push_back(number * share * factor);
  }
  const bool is_small = std::string(phase) != "updated" && std::string(phase) != "weights";
  return {{"kind", "tensor"},          {"step", step},
          {"micro_step", micro_step},  {"phase", phase},
          {"name", toy.prefix + name}, {"dtype", toy.dtype},
          {"count", 64.0 * share},     {"squares", 4.0 * share * factor * factor},
          {"sketch", sketch},          {"is_small", is_small}};
}

/// A parameter: whole on each rank, or a part of it.
Line parameter(const ToyTraining& toy, int rank, int step, const char* phase,
               const std::string& name) {
  Line line = tensor(toy, step, 0, phase, name, toy.sharded ? 1.0 / toy.ranks : 1.0);
  if (toy.sharded) {
    line["begin"] = 64 * rank / toy.ranks;
    line["shape"] = {8, 8};
  }
  return line;
}

std::vector<RankRecording> recorded(const ToyTraining& toy) {
  std::vector<RankRecording> ranks;
  const std::vector<std::string> modules = {"first", "drop", "last"};
  const std::vector<std::string> weights = {"first.weight", "last.weight"};
  for (int rank = 0; rank < toy.ranks; ++rank) {
    std::string text;
    const auto write = [&](Line line) {
      line.erase("is_small");
      toy.change(rank, line);
      text += line.is_null() ? "" : line.dump() + "\n";
    };
    write({{"kind", "program"},
           {"version", 1},
           {"rank", rank},
           {"world_size", toy.ranks},
           {"engine", "torch"},
           {"framework", {{"torch", "2.13"}}},
           {"random", "keep"}});
    Line parameters = Line::array();
    for (const std::string& name : weights) {
      parameters.push_back({{"name", toy.prefix + name},
                            {"shape", {8, 8}},
                            {"dtype", toy.dtype},
                            {"trained", true}});
    }
    Line listed = Line::array();
    for (const std::string& name : modules) {
      listed.push_back(
          {{"name", toy.prefix + name}, {"class", name == "drop" ? "Dropout" : "Linear"}});
    }
    write({{"kind", "model"},
           {"name", ""},
           {"wrapper", "none"},
           {"parameters", parameters},
           {"modules", listed}});
    const int parts = toy.ranks * toy.micro_steps;
    const double share = 1.0 / parts;
    for (int step = 0; step < toy.steps; ++step) {
      write({{"kind", "tensor"},
             {"step", step},
             {"phase", "buffer"},
             {"name", toy.prefix + "last.seen"},
             {"dtype", "float32"},
             {"count", 1},
             {"squares", 1.0},
             {"sketch", {1.0, 1.0, 1.0, 1.0}}});
      for (int micro_step = 0; micro_step < toy.micro_steps; ++micro_step) {
        std::int64_t sum = 0;
        const int rows = 8 / parts;
        for (int row = 0; row < rows; ++row) {
          sum += 1 + 8 * step + row + rows * (rank + toy.ranks * micro_step);
        }
        write({{"kind", "data"},
               {"step", step},
               {"micro_step", micro_step},
               {"name", "0"},
               {"dtype", "int64"},
               {"shape", {rows, 4}},
               {"exact", {sum, sum * 3}}});
        for (const std::string& name : modules) {
          write(tensor(toy, step, micro_step, "forward", name, share));
        }
        write({{"kind", "loss"},
               {"step", step},
               {"micro_step", micro_step},
               {"value", (2.0 - 0.1 * step) / toy.micro_steps},
               {"dtype", "float32"},
               {"scale", 1.0}});
        for (const std::string& name : {modules[2], modules[0]}) {
          write(tensor(toy, step, micro_step, "backward", name, share, toy.ranks));
        }
      }
      for (const std::string& name : weights) {
        if (step == 0) {
          write(parameter(toy, rank, step, "weights", name));
        }
        write(parameter(toy, rank, step, "gradient", name));
      }
      Line names = Line::array();
      for (const std::string& name : weights) {
        names.push_back(toy.prefix + name);
      }
      write(
          {{"kind", "clip"}, {"step", step}, {"function", "norm"}, {"limit", 1.0}, {"norm", 3.0}});
      Line group = {
          {"kind", "group"},
          {"step", step},
          {"optimizer", "AdamW"},
          {"number", 0},
          {"settings", {{"lr", 0.1 - 0.01 * step}, {"weight_decay", 0.0}, {"betas", {0.9, 0.999}}}},
          {"weight_dtype", toy.dtype}};
      if (step == 0) {
        group["names"] = names;
      }
      write(group);
      for (const std::string& name : weights) {
        write(parameter(toy, rank, step, "updated", name));
      }
      write({{"kind", "step"}, {"step", step}, {"skipped", false}, {"parameters", 2}});
    }
    write({{"kind", "end"}, {"reason", "steps"}});
    ranks.push_back(read_rank("rank_" + std::to_string(rank) + ".jsonl", text));
  }
  return ranks;
}

/// A comparison with what it points into.
struct Compared {
  Side a;
  Side b;
  Comparison comparison;

  Compared(const ToyTraining& toy_a, const ToyTraining& toy_b)
      : a(combined(recorded(toy_a), "A", "one")),
        b(combined(recorded(toy_b), "B", "two")),
        comparison(compare_sides(a, b)) {}
};

bool is(const Line& line, const char* kind, int step = -1) {
  return !line.is_null() && line.at("kind") == kind && (step < 0 || line.at("step") == step);
}

bool is_tensor(const Line& line, const char* phase, const std::string& name = "") {
  return is(line, "tensor") && line.at("phase") == phase &&
         (name.empty() || line.at("name") == name);
}

void multiply(Line& line, double factor) {
  for (auto& number : line["sketch"]) {
    number = number.get<double>() * factor;
  }
  line["squares"] = line["squares"].get<double>() * factor * factor;
}

/// Turns a tensor into another one of the same size.
void replace(Line& line, double part = 1.0) {
  double sign = 1.0;
  for (auto& number : line["sketch"]) {
    number = number.get<double>() * (1.0 - part) + part * sign;
    sign = -sign;
  }
}

}  // namespace

TEST_CASE("trainings that belong together are equal: ranks, micro-steps, shards, other names") {
  const ToyTraining one;
  ToyTraining cases[] = {one,
                         {.ranks = 2},
                         {.ranks = 4, .sharded = true},
                         {.micro_steps = 2},
                         {.ranks = 2, .micro_steps = 2, .sharded = true},
                         {.prefix = "model."}};
  // DeepSpeed and others divide the loss by the micro-steps after the program's backward.
  ToyTraining divides_later{.micro_steps = 2};
  divides_later.change = [](int, Line& line) {
    if (is(line, "loss")) {
      line["value"] = line["value"].get<double>() * 2.0;
    } else if (is_tensor(line, "backward")) {
      multiply(line, 2.0);
    }
  };
  std::vector<ToyTraining> all(std::begin(cases), std::end(cases));
  all.push_back(divides_later);
  for (const ToyTraining& other : all) {
    const Compared result(one, other);
    CAPTURE(verdict_text(result.a, result.b, result.comparison));
    CHECK_FALSE(result.comparison.first.has_value());
    CHECK(result.comparison.steps == 3);
    CHECK(result.a.steps[0].loss == doctest::Approx(2.0));
    CHECK(result.comparison.names.by_shape == (other.prefix.empty() ? 0 : 2));
    // Something is compared in each phase.
    CHECK(result.comparison.nearest.size() >= (other.micro_steps == 1 ? 6 : 5));
  }
}

TEST_CASE("the first difference and its cause are found") {
  struct Case {
    std::string cause;
    std::string phase;
    int step;
    ToyTraining b;
    std::function<void(int, Line&)> change;
    ToyTraining a{};
  };
  const ToyTraining ranks{.ranks = 2};
  const ToyTraining micro{.micro_steps = 2};
  const std::vector<Case> cases = {
      {"same_data", "data", 0, ranks,
       [](int, Line& line) {
         if (is(line, "data"))
           line["exact"] = {7, 7};
       }},
      {"batch_size",
       "data",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "data")) {
           line["exact"] = {99, 99};
           line["shape"] = {16, 4};
         }
       }},
      {"last_batch",
       "data",
       2,
       {},
       [](int, Line& line) {
         if (is(line, "data", 2)) {
           line["exact"] = {5, 5};
           line["shape"] = {3, 4};
         }
       }},
      {"data_order",
       "data",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "data"))
           line["exact"] = {36 + 64 * (2 - line["step"].get<int>()), 1};
       }},
      {"rank_without_data", "data", 1, ranks,
       [](int rank, Line& line) {
         if (rank == 1 && is(line, "data", 1))
           line = nullptr;
       }},
      {"master_weights",
       "weights",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "weights"))
           line["dtype"] = "bfloat16";
       }},
      {"initial_weights",
       "initial weights",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "weights", "last.weight"))
           replace(line, 1e-3);
       }},
      {"initial_weights_of_ranks", "initial weights", 0, ranks,
       [](int rank, Line& line) {
         if (rank == 1 && is_tensor(line, "weights"))
           replace(line);
       }},
      {"buffer", "buffers", 1, ranks,
       [](int rank, Line& line) {
         if (rank == 1 && is_tensor(line, "buffer") && line["step"] == 1)
           replace(line);
       }},
      {"dropout",
       "forward",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "model"))
           line["modules"][1]["rate"] = 0.1;
         if (is_tensor(line, "forward", "drop"))
           replace(line);
       }},
      {"tf32",
       "forward",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "forward", "first"))
           replace(line, 5e-4);
       }},
      {"publication",
       "publication",
       1,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "forward", "first") && line["step"] == 1)
           replace(line, 0.01);
       }},
      {"evaluation_mode",
       "backward",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "forward"))
           line = nullptr;
         else if (is_tensor(line, "backward"))
           replace(line);
       }},
      {"loss_not_divided", "forward", 0, micro,
       [](int, Line& line) {
         if (is(line, "loss"))
           line["value"] = line["value"].get<double>() * 2;
         else if (is(line, "clip"))
           line["norm"] = 6.0;
         else if (is_tensor(line, "backward") || is_tensor(line, "gradient"))
           multiply(line, 2.0);
       }},
      {"loss_divided_twice", "forward", 0, micro,
       [](int, Line& line) {
         if (is(line, "loss"))
           line["value"] = line["value"].get<double>() / 2;
         else if (is(line, "clip"))
           line = nullptr;
         else if (is_tensor(line, "backward") || is_tensor(line, "gradient"))
           multiply(line, 0.5);
       }},
      {"sum_over_ranks", "reduction", 0, ranks,
       [](int, Line& line) {
         if (is(line, "clip"))
           line["norm"] = 6.0;
         else if (is_tensor(line, "gradient"))
           multiply(line, 2.0);
       }},
      {"mean_over_tokens", "forward", 0, ranks,
       [](int, Line& line) {
         if (is(line, "loss"))
           line["value"] = line["value"].get<double>() * 1.01;
         else if (is_tensor(line, "backward"))
           replace(line, 0.05);
         else if (is_tensor(line, "gradient"))
           replace(line, 0.05);
       }},
      {"not_reduced",
       "reduction",
       0,
       ranks,
       [](int rank, Line& line) {
         if (is(line, "clip"))
           line = nullptr;
         else if (rank == 1 && is_tensor(line, "gradient"))
           replace(line);
       },
       {.change =
            [](int, Line& line) {
              if (is(line, "clip"))
                line = nullptr;
            }}},
      {"not_zeroed",
       "backward",
       1,
       {},
       [](int, Line& line) {
         if (is(line, "clip"))
           line = nullptr;
         else if (is_tensor(line, "gradient") && line["step"] == 1) {
           const auto before = numbers_of(line["name"].get<std::string>() + "gradient", 0);
           for (std::size_t i = 0; i < before.size(); ++i) {
             line["sketch"][i] = line["sketch"][i].get<double>() + before[i];
           }
         }
       },
       {.change =
            [](int, Line& line) {
              if (is(line, "clip"))
                line = nullptr;
            }}},
      {"no_clipping",
       "clipping",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "clip"))
           line = nullptr;
         else if (is_tensor(line, "gradient"))
           multiply(line, 3.0);
       }},
      {"clip_limit",
       "clipping",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "clip"))
           line["limit"] = 0.5;
         else if (is_tensor(line, "gradient"))
           multiply(line, 0.5);
       }},
      {"local_clipping", "clipping", 0, ranks,
       [](int rank, Line& line) {
         if (is(line, "clip"))
           line["norm"] = 2.0 + rank;
         else if (is_tensor(line, "gradient"))
           multiply(line, 1.3);
       }},
      {"frozen",
       "backward",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "model"))
           line["parameters"][0]["trained"] = false;
         else if (is_tensor(line, "gradient", "first.weight"))
           line = nullptr;
       }},
      {"unused",
       "backward",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "gradient", "first.weight"))
           line = nullptr;
       }},
      {"reduction_type", "reduction", 0, ranks,
       [](int, Line& line) {
         if (is_tensor(line, "gradient"))
           replace(line, 3e-3);
       }},
      {"skipped",
       "optimizer",
       1,
       {},
       [](int, Line& line) {
         if (is(line, "step", 1))
           line["skipped"] = true;
       }},
      {"learning_rate",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "group"))
           line["settings"]["lr"] = 0.2;
       }},
      {"scheduler_steps", "optimizer", 1, ranks,
       [](int, Line& line) {
         if (is(line, "group"))
           line["settings"]["lr"] = 0.1 - 0.02 * line["step"].get<int>();
       }},
      {"no_scheduler",
       "optimizer",
       1,
       {},
       [](int, Line& line) {
         if (is(line, "group"))
           line["settings"]["lr"] = 0.1;
       }},
      {"weight_decay",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "group"))
           line["settings"]["weight_decay"] = 0.1;
       }},
      {"optimizer_setting",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "group"))
           line["settings"]["betas"][1] = 0.99;
       }},
      {"optimizer_before_wrapping",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "step"))
           line["parameters"] = 0;
       }},
      {"update_rule",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is_tensor(line, "updated", "last.weight"))
           replace(line, 0.5);
       }},
      {"updated_twice",
       "optimizer",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "group", 0))
           line["names"].push_back("last.weight");
         else if (is_tensor(line, "updated", "last.weight"))
           multiply(line, 1.2);
       }},
      {"ranks_update_differently", "publication", 0, ranks,
       [](int rank, Line& line) {
         if (rank == 1 && is_tensor(line, "updated"))
           replace(line, 0.001);
       }},
      {"not_unscaled",
       "backward",
       0,
       {},
       [](int, Line& line) {
         if (is(line, "clip"))
           line = nullptr;
         else if (is(line, "loss")) {
           line["scale"] = 64.0;
           line["value"] = line["value"].get<double>() * 64;
         } else if (is_tensor(line, "backward") || is_tensor(line, "gradient"))
           multiply(line, 64.0);
       },
       {.change =
            [](int, Line& line) {
              if (is(line, "clip"))
                line = nullptr;
            }}},
      {"untied",
       "reduction",
       0,
       ranks,
       [](int, Line& line) {
         if (is_tensor(line, "gradient", "first.weight"))
           replace(line);
       },
       {.change =
            [](int, Line& line) {
              if (is(line, "model"))
                line["parameters"][1]["same_as"] = "first.weight";
            }}},
  };
  for (const Case& each : cases) {
    ToyTraining b = each.b;
    b.change = each.change;
    // Either side may have the mistake.
    for (const bool swapped : {false, true}) {
      const Compared result(swapped ? b : each.a, swapped ? each.a : b);
      CAPTURE(each.cause);
      CAPTURE(swapped);
      CAPTURE(verdict_text(result.a, result.b, result.comparison));
      REQUIRE(result.comparison.first.has_value());
      CHECK(result.comparison.first->phase == each.phase);
      CHECK(result.comparison.first->step == each.step);
      REQUIRE_FALSE(result.comparison.causes.empty());
      CHECK(result.comparison.causes[0].id == each.cause);
    }
  }
}

TEST_CASE("a recording: ranks, torn lines, damage with file and line") {
  const TemporaryFolder folder;
  const auto file = [&](int rank) {
    return folder.path() / ("rank_" + std::to_string(rank) + ".jsonl");
  };
  const auto program = [](int rank, int ranks, int version = 1) {
    return Line{{"kind", "program"},
                {"version", version},
                {"rank", rank},
                {"world_size", ranks},
                {"engine", "torch"}}
               .dump() +
           "\n";
  };
  CHECK(contains(error_of([&] { return read_recording(folder.path() / "none"); }),
                 "not_found: cannot open the folder"));
  CHECK(contains(error_of([&] { return read_recording(folder.path()); }), "no file rank_0.jsonl"));
  write_text(file(0), program(0, 2) + R"({"kind": "later", "key": 1})" + "\n" + R"({"kind": "st)");
  CHECK(contains(error_of([&] { return read_recording(folder.path()); }),
                 "has files of 1 ranks, and the training had 2"));
  write_text(file(1), program(1, 2));
  CHECK(read_recording(folder.path()).size() == 2);
  CHECK_FALSE(read_recording(folder.path())[0].has_ended);
  write_text(file(1), program(1, 3));
  CHECK(contains(error_of([&] { return read_recording(folder.path()); }), "of several trainings"));
  write_text(file(1), program(0, 2));
  CHECK(contains(error_of([&] { return read_recording(folder.path()); }), "another rank"));
  for (const auto& [text, message] : {
           std::pair(program(0, 2, 2), "line 1: the recording has version 2"),
           std::pair(std::string("[1]\n"), "line 1: expected a JSON object"),
           std::pair(program(0, 2) + "{\"kind\": \n{}\n", "line 2: expected a JSON object"),
           std::pair(program(0, 2) + R"({"kind": "loss", "step": -1, "value": 1})", "\"step\""),
           std::pair(program(0, 2) + R"({"kind": "loss", "step": 1})", "\"value\" is missing"),
           std::pair(std::string(R"({"kind": "end"})"), "\"program\" first"),
           std::pair(std::string(), "no complete line"),
       }) {
    CHECK(
        contains(error_of([&, text = text] { return read_rank("rank_0.jsonl", text); }), message));
  }
}

TEST_CASE("any bytes are read or refused") {
  std::string text;
  ToyTraining toy{.ranks = 1, .steps = 1};
  toy.change = [&](int, Line& line) { text += line.dump() + "\n"; };
  recorded(toy);
  std::mt19937 generator(7);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = text.substr(0, generator() % text.size());
    for (unsigned change = generator() % 4; change > 0 && !damaged.empty(); --change) {
      damaged[generator() % damaged.size()] = static_cast<char>(generator());
    }
    try {
      const std::vector<RankRecording> ranks = {read_rank("file", damaged)};
      const Side side = combined(ranks, "A", "a");
      verdict_text(side, side, compare_sides(side, side));
    } catch (const acc::Error&) {
    }
  }
}

TEST_CASE("numbers that are not finite: equal on both sides, or the first difference") {
  const auto breaks = [](const char* number) {
    return [=](int, Line& line) {
      if (is_tensor(line, "forward", "last") && line["step"] == 1) {
        line["squares"] = number;
      }
    };
  };
  const ToyTraining a{.change = breaks("nan")};
  CHECK_FALSE(Compared(a, {.change = breaks("inf")}).comparison.first.has_value());
  const Compared result({}, a);
  REQUIRE(result.comparison.first.has_value());
  CHECK(result.comparison.first->name == "last");
  CHECK(result.comparison.first->b == "not finite");
}

TEST_CASE("the verdict as text, JSON and page") {
  ToyTraining wrong;
  wrong.steps = 2;
  wrong.change = [](int, Line& line) {
    if (is_tensor(line, "forward", "last") && line["step"] == 0) {
      multiply(line, 1.001);
    }
  };
  const Compared result({}, wrong);
  const std::string text = verdict_text(result.a, result.b, result.comparison);
  CHECK(contains(text, "A and B part at step 0: forward\n"));
  CHECK(contains(text, "  unit      last (Linear)\n"));
  CHECK(contains(text, "A has 3 steps and B 2: the first 2 are compared"));
  const auto json = verdict_json(result.a, result.b, result.comparison);
  CHECK(json["verdict"] == "different");
  CHECK(json["first"]["name"] == "last");
  CHECK(json["curves"].size() == 2);
  const std::string page = report_page(result.a, result.b, result.comparison);
  CHECK(contains(page, "<h2>loss</h2>"));
  CHECK(contains(page, "<tr><th>last</th>"));
  CHECK_FALSE(contains(page, "http"));
}

TEST_CASE("the command line of compare: sides, own flags, launcher, program") {
  const SideRun side = read_side("num_processes=2,cpu=true,gpu_ids=0,1,env.SEED=3,use_fsdp=false");
  CHECK(side.flags ==
        std::vector<std::string>{"--num_processes", "2", "--cpu", "--gpu_ids", "0,1"});
  CHECK(side.variables == std::map<std::string, std::string>{{"SEED", "3"}});
  CHECK(contains(error_of([] { return read_side("nothing"); }), "expected a configuration file"));
  CHECK(contains(error_of([] { return read_side("cpu=perhaps"); }), "expected true or false"));
  const std::vector<std::string> words = {
      "--cpu", "--a",      "num_processes=1", "--steps=3", "--num_processes", "2", "--b",
      "x=y",   "train.py", "--steps",         "9"};
  const Words split = split_words(words);
  CHECK(split.own == std::vector<std::string>{"--a", "num_processes=1", "--steps=3", "--b", "x=y"});
  CHECK(split.launcher == std::vector<std::string>{"--cpu", "--num_processes", "2"});
  CHECK(split.program == std::vector<std::string>{"train.py", "--steps", "9"});
}
