// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/catalog/parameter_names.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "catalog/group_values.hpp"
#include "pickle/reader.hpp"
#include "support/errors.hpp"
#include "support/python_value.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
namespace accelerate = acc::checkpoint::accelerate;
using namespace acc::checkpoint;
using acc::test::PythonValue;
using acc::test::refusal;
using acc::test::TemporaryFolder;

void check_parts(const std::string& message, const std::vector<std::string>& expected) {
  CAPTURE(message);
  CHECK(message.empty() == expected.empty());
  for (const std::string& part : expected) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

struct Opened {
  Catalog catalog;
  TrainingState training;
  Provenance provenance;
};

std::vector<float> values_of(Catalog& catalog, const std::string& name, const std::string& kind) {
  const StoredTensor& tensor = catalog.at(name, kind, "test");
  std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.shape)));
  TensorReader(catalog).read(tensor, 0, numel_of(tensor.shape), Dtype::f32, values.data());
  return values;
}

accelerate::FillTensor counting(const std::vector<std::size_t>& numels) {
  return [numels](std::size_t index, const torch::Sink& sink) {
    for (std::size_t i = 0; i < numels[index]; ++i) {
      const auto value = static_cast<float>(100 * index + i);
      sink(std::as_bytes(std::span(&value, 1)));
    }
  };
}

}  // namespace

TEST_CASE("names in a save folder are Accelerate's") {
  CHECK(accelerate::model_folder(0) == "pytorch_model_fsdp_0");
  CHECK(accelerate::optimizer_folder(1) == "optimizer_1");
  CHECK(accelerate::model_file(0) == "pytorch_model_fsdp.bin");
  CHECK(accelerate::model_file(1) == "pytorch_model_fsdp_1.bin");
  CHECK(accelerate::optimizer_file(0) == "optimizer.bin");
  CHECK(accelerate::optimizer_file(2) == "optimizer_2.bin");
  CHECK(accelerate::local_model_file(0, 3) == "pytorch_model_fsdp_rank3.bin");
  CHECK(accelerate::local_model_file(1, 3) == "pytorch_model_fsdp_1_rank3.bin");
  CHECK(accelerate::scheduler_file(0) == "scheduler.bin");
  CHECK(accelerate::scheduler_file(1) == "scheduler_1.bin");
  CHECK(accelerate::random_states_file(12) == "random_states_12.pkl");
  CHECK(accelerate::custom_file(0) == "custom_checkpoint_0.pkl");
}

TEST_CASE("is_ours is true only for files that we write") {
  for (const std::string ours :
       {"pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp",
        "optimizer_12/__2815_0.distcp", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin",
        "optimizer.bin", "optimizer_1.bin", "pytorch_model_fsdp_rank0.bin",
        "pytorch_model_fsdp_1_rank17.bin", "scheduler.bin", "scheduler_1.bin", "scaler.pt",
        "random_states_0.pkl", "custom_checkpoint_0.pkl", "acc_checkpoint.json",
        "model.safetensors", "model_1.safetensors", "pytorch_model.bin"}) {
    CAPTURE(ours);
    CHECK(accelerate::is_ours(ours));
  }
  for (const std::string other :
       {"", "notes.txt", ".metadata", "optimizer_0/notes", "optimizer_0/x/.metadata",
        "optimizer_/.metadata", "other_0/.metadata", "pytorch_model_fsdp_0/__0.distcp",
        "pytorch_model_fsdp_0/__0_0.distcp.bak", "optimizer_x.bin", "optimizer_1.bin.old",
        "pytorch_model_fsdp_rank.bin", "random_states_.pkl", "scheduler_.bin", "Scaler.pt",
        "model.bin", "/optimizer_0/.metadata", "../optimizer.bin"}) {
    CAPTURE(other);
    CHECK_FALSE(accelerate::is_ours(other));
  }
}

TEST_CASE("model and optimizer are found under every name that Accelerate has used") {
  struct Case {
    const char* name;  ///< a name that ends in '/' is a folder
    int index;
    bool is_optimizer;
  };
  for (const Case& c : std::initializer_list<Case>{{"pytorch_model_fsdp_0/", 0, false},
                                                   {"pytorch_model_fsdp_1/", 1, false},
                                                   {"pytorch_model_0/", 0, false},
                                                   {"pytorch_model/", 0, false},
                                                   {"pytorch_model_1/", 1, false},
                                                   {"pytorch_model_fsdp.bin", 0, false},
                                                   {"pytorch_model_fsdp_1.bin", 1, false},
                                                   {"model.safetensors", 0, false},
                                                   {"model_1.safetensors", 1, false},
                                                   {"pytorch_model.bin", 0, false},
                                                   {"pytorch_model_1.bin", 1, false},
                                                   {"pytorch_model_fsdp_rank0.bin", 0, false},
                                                   {"optimizer_0/", 0, true},
                                                   {"optimizer.bin", 0, true},
                                                   {"optimizer_1.bin", 1, true}}) {
    CAPTURE(c.name);
    TemporaryFolder folder;
    std::string name = c.name;
    if (name.ends_with('/')) {
      name.pop_back();
      fs::create_directory(folder.path() / name);
    } else {
      std::ofstream(folder.path() / name) << "x";
    }
    const auto find = c.is_optimizer ? accelerate::find_optimizer : accelerate::find_model;
    const auto find_other = c.is_optimizer ? accelerate::find_model : accelerate::find_optimizer;
    CHECK(find(folder.path(), c.index) == folder.path() / name);
    CHECK_FALSE(find(folder.path(), c.index + 2));
    CHECK_FALSE(find_other(folder.path(), c.index));
  }
}

TEST_CASE("scheduler, scaler, random states and custom values are read back") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "file";

  accelerate::write_scheduler(path, {.steps = 7, .base_lrs = {0.1, 0.2}, .last_lrs = {0.05, 0.1}});
  const accelerate::SchedulerState scheduler = accelerate::read_scheduler(path);
  CHECK(scheduler.steps == 7);
  CHECK(scheduler.base_lrs == std::vector<double>{0.1, 0.2});
  CHECK(scheduler.last_lrs == std::vector<double>{0.05, 0.1});

  const std::map<std::string, double> state = {
      {"scale", 65536.0}, {"clean_steps", 3.0}, {"iteration", 9.0}, {"last_overflow", -1.0}};
  accelerate::write_scaler(path, state);
  const auto scaler = accelerate::read_scaler(path);
  for (const auto& [name, value] : state) {
    CHECK(scaler.at(name) == value);
  }

  const accelerate::ProgramState values = {{"epoch", std::int64_t{1} << 40},
                                           {"loss", 0.1},
                                           {"name", std::string("Grüße")},
                                           {"negative", std::int64_t{-5}}};
  accelerate::write_random_states(path, 12, values);
  CHECK(accelerate::read_random_states(path) == values);
  accelerate::write_custom(path, values);
  CHECK(accelerate::read_custom(path) == values);
  accelerate::write_custom(path, {});
  CHECK(accelerate::read_custom(path).empty());
}

TEST_CASE("unknown state files are refused with file and key") {
  using Read = std::function<void(const fs::path&)>;
  const Read scheduler = [](const fs::path& path) { accelerate::read_scheduler(path); };
  const Read scaler = [](const fs::path& path) { accelerate::read_scaler(path); };
  const Read random = [](const fs::path& path) { accelerate::read_random_states(path); };
  const Read custom = [](const fs::path& path) { accelerate::read_custom(path); };
  struct Case {
    Read read;
    PythonValue value;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases = {
      {scheduler, PythonValue::dict({{"base_lrs", PythonValue::list({})}}), {"without last_epoch"}},
      {scheduler, PythonValue::dict({{"last_epoch", 0.5}}), {"without last_epoch"}},
      {scheduler,
       PythonValue::dict({{"last_epoch", 1}, {"base_lrs", PythonValue::list({"x"})}}),
       {"base_lrs.0", "a number"}},
      {scheduler, PythonValue(3), {"without last_epoch"}},
      {scaler, PythonValue::dict({{"growth_factor", 2.0}}), {"'scale' is missing"}},
      {scaler, PythonValue::dict({{"scale", "x"}}), {"'scale'", "a number"}},
      {scaler, PythonValue::dict(), {}},
      {random, PythonValue::dict({{"step", 3}}), {}},
      {random, PythonValue::list({}), {"a dict"}},
      {custom,
       PythonValue::dict({{"x", PythonValue::list({})}}),
       {"'x'", "a number, a string or bytes"}},
      {custom, PythonValue::dict({{"x", PythonValue::tensor({2})}}), {"'x'"}},
      {custom, PythonValue("x"), {"a dict"}},
  };
  for (const Case& c : cases) {
    TemporaryFolder folder;
    const fs::path path = folder.path() / "state.bin";
    c.value.save(path);
    const std::string message = refusal([&] { c.read(path); });
    check_parts(message, c.expected);
    CHECK((message.empty() || message.find("state.bin") != std::string::npos));
    fs::resize_file(path, fs::file_size(path) - 30);
    CHECK(refusal([&] { c.read(path); }).find("state.bin") != std::string::npos);
    CHECK_FALSE(refusal([&] { c.read(folder.path() / "absent"); }).empty());
  }
}

TEST_CASE("parameter groups have torch's keys and are read back") {
  StoredGroup group;
  group.hyper_parameters = {{"lr", 0.01},     {"beta1", 0.8},        {"beta2", 0.9},
                            {"eps", 1e-6},    {"weight_decay", 0.0}, {"initial_lr", 0.02},
                            {"momentum", 0.5}};
  group.parameters = {"a", "b"};
  group.param_names = {"module.a", "module.b"};
  // Values that the program has added keep their types.
  PythonValue pair = PythonValue::list({-1, 0.5});
  pair.kind = PythonValue::Kind::tuple;
  const PythonValue added =
      PythonValue::dict({{"name", "decay"},
                         {"layer", 7},
                         {"flag", true},
                         {"nothing", PythonValue()},
                         {"list", PythonValue::list({"é", pair, PythonValue::list({})})}});
  TemporaryFolder folder;
  added.save(folder.path() / "added.bin");
  const torch::TorchFile file(folder.path() / "added.bin");
  for (const auto& [key, node] : pickle::Node(file.root(), "added").entries()) {
    CHECK(read_group_key(key, node, group));
  }
  CHECK(group.others.size() == 5);
  for (const char* optimizer : {"adamw", "sgd"}) {
    StoredGroup read;
    for (const accelerate::GroupValue& value : accelerate::group_values(optimizer, group)) {
      const pickle::Values parsed = pickle::read(std::as_bytes(std::span(value.pickle)), value.key);
      CHECK(read_group_key(value.key, pickle::Node(parsed.root(), value.key), read));
    }
    CHECK(read.parameters == group.parameters);
    CHECK(read.param_names == group.param_names);
    CHECK(read.others == group.others);
    for (const char* key : {"lr", "weight_decay", "initial_lr", "momentum"}) {
      CHECK(read.hyper_parameters.at(key) == group.hyper_parameters.at(key));
    }
    CHECK(read.hyper_parameters.at("maximize") == 0.0);
    CHECK_FALSE(read.hyper_parameters.contains("foreach"));
  }
  CHECK_THROWS_AS(accelerate::group_values("lars", group), acc::Error);
}

TEST_CASE("full files of model and optimizer are read back") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "pytorch_model_fsdp.bin";
  accelerate::write_model_file(path,
                               {{"w", Dtype::f32, {2, 3}},
                                {"b", Dtype::f32, {3}},
                                {"s", Dtype::f32, {}},
                                {"none", Dtype::f32, {0, 4}}},
                               counting({6, 3, 1, 0}));
  Opened model;
  accelerate::read_torch_file(path, model.catalog, model.training, model.provenance);
  CHECK(model.provenance.format == "torch.save");
  CHECK(values_of(model.catalog, "w", "param") == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(values_of(model.catalog, "b", "param") == std::vector<float>{100, 101, 102});
  CHECK(values_of(model.catalog, "s", "param") == std::vector<float>{200});
  CHECK(model.catalog.at("none", "param", "test").shape == Shape{0, 4});
  CHECK(model.catalog.at("b", "param", "test").stored_name == "b");

  // Moments in the order of kinds, not of parameters.
  const fs::path optimizer = folder.path() / "optimizer.bin";
  StoredGroup group;
  group.hyper_parameters = {{"lr", 0.01}};
  group.parameters = {"w", "b"};
  accelerate::write_optimizer_file(optimizer, "adamw", 5, {group},
                                   {{"w", "exp_avg", Dtype::f32, {2, 3}},
                                    {"b", "exp_avg", Dtype::f32, {3}},
                                    {"w", "exp_avg_sq", Dtype::f32, {2, 3}},
                                    {"b", "exp_avg_sq", Dtype::f32, {3}},
                                    {"b", "step", Dtype::f32, {}}},
                                   counting({6, 3, 6, 3, 1}));
  Opened state;
  accelerate::read_torch_file(optimizer, state.catalog, state.training, state.provenance);
  CHECK(state.training.step == 400);
  CHECK(state.training.fewest_steps == 5);
  CHECK(state.training.optimizer == "adamw");
  CHECK(state.training.groups.at(0).parameters == group.parameters);
  CHECK(values_of(state.catalog, "b", "exp_avg") == std::vector<float>{100, 101, 102});
  CHECK(values_of(state.catalog, "b", "exp_avg_sq") == std::vector<float>{300, 301, 302});
  CHECK(values_of(state.catalog, "w", "step") == std::vector<float>{5});
  CHECK(values_of(state.catalog, "b", "step") == std::vector<float>{400});
}

namespace {

/// As torch's own optimizers write it: parameters have numbers.
PythonValue numbered_optimizer() {
  const auto state = [](Shape shape, float first) {
    return PythonValue::dict({{"step", PythonValue::tensor({}, 3.0F)},
                              {"exp_avg", PythonValue::tensor(shape, first)},
                              {"exp_avg_sq", PythonValue::tensor(shape, first + 50.0F)}});
  };
  return PythonValue::dict(
      {{"state", PythonValue::dict({{0, state({2, 3}, 0.0F)}, {1, state({3}, 10.0F)}})},
       {"param_groups",
        PythonValue::list({PythonValue::dict({{"lr", 0.1},
                                              {"betas", PythonValue::list({0.9, 0.95})},
                                              {"foreach", PythonValue()},
                                              {"params", PythonValue::list({0, 1})}})})}});
}

}  // namespace

TEST_CASE("numbered optimizer states keep their numbers unless names or shapes tell the names") {
  using Names = std::vector<std::string>;
  struct Case {
    const char* what;
    std::function<void(PythonValue& optimizer, PythonValue& weights)> change;
    std::vector<std::string> expected;  ///< parts of an error
    const char* unknown = "";           ///< part of the reason why names are unknown
    Names names = {"w", "b"};           ///< of the first group
  };
  const auto tensor = [](Shape shape) { return PythonValue::tensor(shape); };
  const std::vector<Case> cases = {
      {"one weight of each shape", [](auto&, auto&) {}, {}},
      {"weights in another order",
       [&](auto&, auto& w) {
         w = PythonValue::dict({{"b", tensor({3})}, {"w", tensor({2, 3})}});
       },
       {}},
      {"names in the file",
       [&](auto& v, auto& w) {
         v.at("param_groups/0/param_names") = PythonValue::list({"w", "b"});
         w = PythonValue::dict({{"x", tensor({3})}, {"b", tensor({3})}, {"w", tensor({2, 3})}});
       },
       {}},
      {"names of a wrapped module",
       [&](auto& v, auto& w) {
         v.at("param_groups/0/param_names") = PythonValue::list({"module.w", "module._orig_mod.b"});
         w = PythonValue::dict({{"x", tensor({3})}, {"b", tensor({3})}, {"w", tensor({2, 3})}});
       },
       {}},
      {"names too few",
       [](auto& v, auto&) { v.at("param_groups/0/param_names") = PythonValue::list({"w"}); },
       {"param_names", "1 names"}},
      {"numbers in another order",
       [](auto& v, auto&) {
         v.at("param_groups/0/params") = PythonValue::list({1, 0});
       },
       {},
       "",
       {"b", "w"}},
      {"numbers with a gap, and one without a state",
       [](auto& v, auto&) {
         v.at("param_groups/0/params") = PythonValue::list({0, 7, 1});
       },
       {}},
      {"a frozen weight and a buffer of integers",
       [&](auto&, auto& w) {
         w = PythonValue::dict({{"f", tensor({4})}, {"b", tensor({3})}, {"w", tensor({2, 3})}});
       },
       {}},
      {"a buffer of the same shape",
       [&](auto&, auto& w) {
         w = PythonValue::dict(
             {{"running_mean", tensor({3})}, {"b", tensor({3})}, {"w", tensor({2, 3})}});
       },
       {},
       "1 of its states is of shape [3], and so are 2 weights"},
      {"no weight of the shape",
       [&](auto&, auto& w) {
         w = PythonValue::dict({{"w", tensor({2, 3})}});
       },
       {},
       "1 of its states is of shape [3], and so are 0 weights"},
      {"a state of two shapes",
       [&](auto& v, auto&) { v.at("state/0/exp_avg_sq") = tensor({2}); },
       {},
       "the state of number 0 is not of the shape of a weight"},
      {"a state of no group",
       [](auto& v, auto&) { v.at("param_groups/0/params/1") = 7; },
       {"state.1"}},
      {"two groups",
       [](auto& v, auto&) {
         v.at("param_groups/0/params") = PythonValue::list({0});
         v.at("param_groups")
             .items.push_back(PythonValue::dict({{"lr", 0.1}, {"params", PythonValue::list({1})}}));
       },
       {},
       "",
       {"w"}},
      {"a rate of text",
       [](auto& v, auto&) { v.at("param_groups/0/lr") = "x"; },
       {"lr", "a number"}},
      {"one beta",
       [](auto& v, auto&) { v.at("param_groups/0/betas") = PythonValue::list({0.9}); },
       {"betas", "two numbers"}},
      {"a group without parameters",
       [](auto& v, auto&) { v.erase("param_groups/0/params"); },
       {"params", "missing"}},
      {"a moment of text",
       [](auto& v, auto&) { v.at("state/0/exp_avg") = "x"; },
       {"state.0.exp_avg"}},
      {"a negative step", [](auto& v, auto&) { v.at("state/0/step") = -1.0; }, {"state.0.step"}},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    TemporaryFolder folder;
    PythonValue weights =
        PythonValue::dict({{"w", PythonValue::tensor({2, 3})}, {"b", PythonValue::tensor({3})}});
    PythonValue optimizer = numbered_optimizer();
    c.change(optimizer, weights);
    weights.save(folder.path() / "model.bin");
    optimizer.save(folder.path() / "optimizer.bin");
    Opened opened;
    const std::string message = refusal([&] {
      for (const char* file : {"model.bin", "optimizer.bin"}) {
        accelerate::read_torch_file(folder.path() / file, opened.catalog, opened.training,
                                    opened.provenance);
      }
      name_parameters(opened.catalog, opened.training);
    });
    check_parts(message, c.expected);
    if (!message.empty()) {
      continue;
    }
    CHECK(opened.training.names_unknown.empty() == std::string(c.unknown).empty());
    CHECK(opened.training.names_unknown.find(c.unknown) != std::string::npos);
    if (opened.training.names_unknown.empty()) {
      CHECK(opened.training.step == 3);
      CHECK(opened.training.groups.at(0).parameters == c.names);
      CHECK(opened.training.groups.at(0).hyper_parameters.at("beta2") == 0.95);
      CHECK(values_of(opened.catalog, "b", "exp_avg_sq") == std::vector<float>{60, 61, 62});
      CHECK(opened.catalog.at("b", "exp_avg", "test").stored_name == "state.1.exp_avg");
    } else {
      CHECK(opened.catalog.find("b", "exp_avg") == nullptr);
      CHECK(opened.catalog.at("(parameter 1)", "exp_avg", "test").number_only == "1");
    }
  }
}

TEST_CASE("files of weights: a top key, values that are not tensors, flat parameters") {
  struct Case {
    const char* what;
    PythonValue value;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases = {
      {"a dict", PythonValue::dict({{"w", PythonValue::tensor({2})}}), {}},
      {"a key over it",
       PythonValue::dict({{"model", PythonValue::dict({{"w", PythonValue::tensor({2})}})}}),
       {}},
      {"extra state",
       PythonValue::dict({{"w", PythonValue::tensor({2})}, {"x._extra_state", 3}}),
       {}},
      {"a number",
       PythonValue::dict({{"w", PythonValue::tensor({2})}, {"v", 3}}),
       {"'v'", "a tensor"}},
      {"a list", PythonValue::list({}), {"a dict of tensors"}},
      {"a flat parameter",
       PythonValue::dict({{"h.0._flat_param", PythonValue::tensor({2})}}),
       {"h.0._flat_param", "LOCAL_STATE_DICT"}},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    TemporaryFolder folder;
    const fs::path path = folder.path() / "weights.pt";
    c.value.save(path);
    Opened opened;
    const std::string message = refusal([&] {
      accelerate::read_torch_file(path, opened.catalog, opened.training, opened.provenance);
    });
    check_parts(message, c.expected);
    if (message.empty()) {
      CHECK(values_of(opened.catalog, "w", "param") == std::vector<float>{0, 1});
    } else {
      CHECK(message.find("weights.pt") != std::string::npos);
    }
  }
}
