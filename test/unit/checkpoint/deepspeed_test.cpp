// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/deepspeed.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "deepspeed/flat_layout.hpp"
#include "support/errors.hpp"
#include "support/python_value.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using acc::test::PythonValue;
using acc::test::refusal;
using acc::test::TemporaryFolder;

const fs::path kData = fs::path(ACC_TEST_DATA) / "checkpoints";

struct OpenedFolder {
  Catalog catalog;
  TrainingState training;
  Provenance provenance;

  explicit OpenedFolder(const fs::path& path) {
    deepspeed::read_checkpoint(path, catalog, training, provenance);
  }
};

std::vector<std::byte> bytes_of(TensorReader& reader, const StoredTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(numel_of(tensor.shape)) *
                               size_of(tensor.dtype));
  reader.read(tensor, 0, numel_of(tensor.shape), tensor.dtype, bytes.data());
  return bytes;
}

/// True if a tensor has the elements of another, bit for bit.
void check_same(Catalog& catalog, const std::string& name, const std::string& kind,
                Catalog& expected_catalog, const StoredTensor& expected) {
  CAPTURE(name);
  CAPTURE(kind);
  const StoredTensor* const tensor = catalog.find(name, kind);
  REQUIRE(tensor != nullptr);
  CHECK(tensor->shape == expected.shape);
  std::vector<Box> boxes;
  for (const StoredPiece& piece : tensor->pieces) {
    boxes.push_back(piece.box);
  }
  CHECK(cover_fault(tensor->shape, boxes).empty());
  TensorReader reader(catalog), expected_reader(expected_catalog);
  std::vector<std::byte> values(static_cast<std::size_t>(numel_of(tensor->shape)) *
                                size_of(expected.dtype));
  reader.read(*tensor, 0, numel_of(tensor->shape), expected.dtype, values.data());
  CHECK(values == bytes_of(expected_reader, expected));
  CHECK(reader.verify(*tensor));
}

std::size_t params_of(const Catalog& catalog) {
  return static_cast<std::size_t>(
      std::ranges::count(catalog.tensors, "param", &StoredTensor::kind));
}

}  // namespace

TEST_CASE("DeepSpeed: three ranks' checkpoints give the fp32 weights that DeepSpeed merges") {
  for (const char* name : {"ds_zero2_w3", "ds_zero3_w3"}) {
    CAPTURE(name);
    Catalog expected = read_safetensors(kData / name / "fp32_full.safetensors");
    CHECK(deepspeed::is_checkpoint(kData / name));
    for (const char* folder : {"", "global_step3"}) {
      OpenedFolder opened(kData / name / folder);
      for (const StoredTensor& tensor : expected.tensors) {
        check_same(opened.catalog, tensor.name, "param", expected, tensor);
      }
      CHECK(params_of(opened.catalog) == expected.tensors.size());
      CHECK(opened.training.step == 3);
      CHECK(opened.training.skipped_steps == 0);
      CHECK(opened.training.optimizer == "adamw");
      CHECK(opened.training.loss_scaler.empty());
      REQUIRE(opened.training.groups.size() == 2);
      CHECK(opened.training.groups[0].hyper_parameters.at("weight_decay") == 0.1);
      CHECK(opened.training.groups[1].hyper_parameters.at("weight_decay") == 0.0);
      CHECK(opened.training.groups[1].hyper_parameters.at("beta2") == 0.95);
      CHECK(opened.training.groups[0].parameters.size() == 6);
      CHECK(opened.training.groups[1].parameters.size() == 10);
      CHECK(opened.catalog.find("lm_head.weight", "exp_avg") == nullptr);
      CHECK(opened.provenance.writer == "DeepSpeed 0.19.8");
      CHECK(opened.provenance.world_size == 3);
    }
  }
}

TEST_CASE("DeepSpeed: weights and moments equal those that DeepSpeed gathers") {
  struct Case {
    const char* name;
    const char* format;
  };
  for (const Case& c : std::initializer_list<Case>{{"ds_zero1_w2", "DeepSpeed ZeRO 1"},
                                                   {"ds_bf16_w2", "DeepSpeed ZeRO 1"},
                                                   {"ds_zero2_w2", "DeepSpeed ZeRO 2"},
                                                   {"ds_zero3_w2", "DeepSpeed ZeRO 3"}}) {
    CAPTURE(c.name);
    OpenedFolder opened(kData / c.name);
    CHECK(opened.provenance.format == c.format);
    Catalog expected = read_safetensors(kData / c.name / "reference.safetensors");
    for (const StoredTensor& tensor : expected.tensors) {
      const auto slash = tensor.name.find('/');
      check_same(opened.catalog, tensor.name.substr(slash + 1), tensor.name.substr(0, slash),
                 expected, tensor);
    }
    // 7 trained, 2 frozen, a tied name, 2 buffers.
    CHECK(params_of(opened.catalog) == 12);
    CHECK(opened.training.groups.at(0).parameters.size() == 3);
    CHECK(opened.training.groups.at(1).parameters.size() == 4);
  }
}

TEST_CASE("DeepSpeed: an export for any stage and world size is read back bit for bit") {
  OpenedFolder source(kData / "ds_zero3_w2");
  source.training.loss_scaler = {{"scale", 1024.0},
                                 {"clean_steps", 0.0},
                                 {"iteration", 7.0},
                                 {"last_overflow", 2.0},
                                 {"hysteresis", 2.0}};
  source.training.skipped_steps = 1;
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {  // a parameter without elements
    source.catalog.tensors.push_back(
        {.name = "none", .kind = kind, .stored_name = "none", .shape = {0, 3}, .pieces = {}});
  }
  source.catalog.index();
  source.training.groups[1].parameters.emplace_back("none");
  for (const int stage : {1, 2, 3}) {
    for (const int world_size : {1, 2, 3, 64}) {
      CAPTURE(stage);
      CAPTURE(world_size);
      TemporaryFolder folder;
      TensorReader reader(source.catalog);
      deepspeed::write_checkpoint(folder.path(), source.catalog, reader, source.training,
                                  {.stage = stage, .world_size = world_size, .tag = ""});
      CHECK(fs::exists(folder.path() / "global_step3"));
      OpenedFolder copy(folder.path());
      for (const StoredTensor& tensor : source.catalog.tensors) {
        check_same(copy.catalog, tensor.name, tensor.kind, source.catalog, tensor);
      }
      CHECK(copy.catalog.tensors.size() == source.catalog.tensors.size());
      CHECK(copy.training.step == source.training.step);
      CHECK(copy.training.skipped_steps == 1);
      CHECK(copy.training.optimizer == "adamw");
      CHECK(copy.training.buffers == std::set<std::string>{"scale", "seen"});
      CHECK(copy.training.loss_scaler.at("scale") == 1024.0);
      CHECK(copy.training.loss_scaler.at("last_overflow") == 2.0);
      REQUIRE(copy.training.groups.size() == 2);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(copy.training.groups[i].parameters == source.training.groups[i].parameters);
        CHECK(copy.training.groups[i].hyper_parameters ==
              source.training.groups[i].hyper_parameters);
      }
      CHECK(copy.provenance.world_size == world_size);
      CHECK(copy.provenance.writer.starts_with("acclaunch "));
    }
  }
}

TEST_CASE("DeepSpeed: weights alone are written as one group") {
  Catalog catalog = read_safetensors(kData / "ds_zero2_w3" / "fp32_full.safetensors");
  TemporaryFolder folder;
  TensorReader reader(catalog);
  deepspeed::write_checkpoint(folder.path(), catalog, reader, {},
                              {.stage = 2, .world_size = 3, .tag = "first"});
  OpenedFolder copy(folder.path());
  for (const StoredTensor& tensor : catalog.tensors) {
    check_same(copy.catalog, tensor.name, "param", catalog, tensor);
  }
  CHECK(copy.catalog.tensors.size() == catalog.tensors.size());
  for (const deepspeed::ExportOptions& options :
       {deepspeed::ExportOptions{.stage = 4, .world_size = 1, .tag = ""},
        deepspeed::ExportOptions{.stage = 2, .world_size = 0, .tag = ""},
        deepspeed::ExportOptions{.stage = 2, .world_size = 1, .tag = "../up"}}) {
    CHECK_THROWS_AS(deepspeed::write_checkpoint(folder.path(), catalog, reader, {}, options),
                    acc::Error);
  }
  StoredTensor state = catalog.tensors.front();
  state.kind = "row_var";
  state.shape = {1};
  Catalog with_state = catalog;
  with_state.tensors.push_back(state);
  CHECK_THROWS_WITH_AS(deepspeed::write_checkpoint(folder.path(), with_state, reader, {},
                                                   {.stage = 2, .world_size = 1, .tag = "second"}),
                       doctest::Contains("states of the shape of their parameter only"),
                       acc::Error);
}

namespace {

/// Two ranks, stage 2: a of [3, 2] and b of [3] in one group of 9 elements, flats of 6 and 3.
struct Small {
  PythonValue module = PythonValue::dict(
      {{"module",
        PythonValue::dict({{"a", PythonValue::tensor({3, 2})}, {"b", PythonValue::tensor({3})}})},
       {"buffer_names", PythonValue::list({})},
       {"param_shapes", PythonValue::list({PythonValue::dict(
                            {{"a", PythonValue::size({3, 2})}, {"b", PythonValue::size({3})}})})},
       {"shared_params", PythonValue::dict()},
       {"global_steps", 5},
       {"skipped_steps", 1},
       {"mp_world_size", 1},
       {"ds_version", "0.1"}});
  std::vector<PythonValue> ranks = {rank(6, 0.0F), rank(3, 6.0F)};

  static PythonValue rank(std::int64_t numel, float first) {
    return PythonValue::dict(
        {{"optimizer_state_dict",
          PythonValue::dict(
              {{"zero_stage", 2},
               {"partition_count", PythonValue::list({2})},
               {"base_optimizer_state",
                PythonValue::dict(
                    {{"state", PythonValue::dict(
                                   {{0, PythonValue::dict(
                                            {{"step", PythonValue::tensor({}, 4.0F)},
                                             {"exp_avg", PythonValue::tensor({6}, first)},
                                             {"exp_avg_sq", PythonValue::tensor({6}, first)}})}})},
                     {"param_groups", PythonValue::list({PythonValue::dict(
                                          {{"lr", 0.5}, {"params", PythonValue::list({0})}})})}})},
               {"single_partition_of_fp32_groups",
                PythonValue::list({PythonValue::tensor({numel}, first)})}})}});
  }

  /// Returns a value of rank 1's file.
  PythonValue& state(const std::string& path) {
    return ranks[1].at("optimizer_state_dict/" + path);
  }

  void save(const fs::path& folder) const {
    module.save(folder / "mp_rank_00_model_states.pt");
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].save(folder / ("zero_pp_rank_" + std::to_string(i) + "_mp_rank_00_optim_states.pt"));
    }
  }
};

}  // namespace

TEST_CASE("DeepSpeed: an inconsistent checkpoint is refused with file and key") {
  struct Case {
    const char* what;
    std::function<void(Small&)> change;
    std::vector<std::string> expected;
  };
  const std::string rank_1 = "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::string model = "mp_rank_00_model_states.pt";
  const std::vector<Case> cases = {
      {"nothing is wrong", [](Small&) {}, {}},
      {"no module", [](Small& s) { s.module.erase("module"); }, {model, "'module' is missing"}},
      {"a module of another kind",
       [](Small& s) { s.module.at("module/a") = 3; },
       {model, "module.a", "a tensor"}},
      {"no shapes", [](Small& s) { s.module.erase("param_shapes"); }, {model, "param_shapes"}},
      {"a shape of text",
       [](Small& s) { s.module.at("param_shapes/0/a") = "x"; },
       {model, "param_shapes.0.a", "torch.Size"}},
      {"a negative shape",
       [](Small& s) {
         s.module.at("param_shapes/0/a") = PythonValue::size({-3, 2});
       },
       {model, "param_shapes.0.a"}},
      {"a shape beyond all memory",
       [](Small& s) {
         s.module.at("param_shapes/0/a") = PythonValue::size({1LL << 40, 1LL << 40});
       },
       {model, "param_shapes.0.a"}},
      {"a parameter that is too large",
       [](Small& s) { s.module.at("param_shapes/0/b") = PythonValue::size({1LL << 60}); },
       {model, "parameter b", "[1152921504606846976]", "has 9"}},
      {"a parameter too few",
       [](Small& s) { s.module.erase("param_shapes/0/a"); },
       {model, "3 elements", "9"}},
      {"groups too many",
       [](Small& s) {
         s.module.at("param_shapes") =
             PythonValue::list({PythonValue::dict(), PythonValue::dict()});
       },
       {model, "2 groups"}},
      {"tensor parallel", [](Small& s) { s.module.at("mp_world_size") = 2; }, {"tensor-parallel"}},
      {"a step that is none", [](Small& s) { s.module.at("global_steps") = -1; }, {"global_steps"}},
      {"no state", [](Small& s) { s.ranks[1].erase("optimizer_state_dict"); }, {rank_1, "missing"}},
      {"an unknown stage", [](Small& s) { s.state("zero_stage") = 4; }, {rank_1, "zero_stage"}},
      {"another stage",
       [](Small& s) { s.state("zero_stage") = 1; },
       {rank_1, "stage 1", "rank 0's file has 2"}},
      {"a file of another step",
       [](Small& s) {
         s.state("base_optimizer_state/state/0/step") = PythonValue::tensor({}, 5.0F);
       },
       {rank_1, "5 steps, but rank 0's 4", "two saves"}},
      {"no flats",
       [](Small& s) { s.ranks[1].erase("optimizer_state_dict/single_partition_of_fp32_groups"); },
       {rank_1, "single_partition_of_fp32_groups"}},
      {"a flat that is a number",
       [](Small& s) { s.state("single_partition_of_fp32_groups/0") = 7; },
       {rank_1, "single_partition_of_fp32_groups.0", "a tensor"}},
      {"a flat of two dimensions",
       [](Small& s) {
         s.state("single_partition_of_fp32_groups/0") = PythonValue::tensor({3, 1});
       },
       {rank_1, "one dimension"}},
      {"moments shorter than weights",
       [](Small& s) { s.state("base_optimizer_state/state/0/exp_avg") = PythonValue::tensor({2}); },
       {rank_1, "base_optimizer_state.state.0.exp_avg", "[2]"}},
      {"moments on one rank alone",
       [](Small& s) {
         s.ranks[1].erase("optimizer_state_dict/base_optimizer_state/state/0/exp_avg");
       },
       {rank_1, "exp_avg"}},
      {"another world", [](Small& s) { s.state("partition_count/0") = 3; }, {rank_1, "3 ranks"}},
      {"a missing rank", [](Small& s) { s.ranks.pop_back(); }, {"2 ranks", "of 1"}},
      {"paddings beyond the group",
       [](Small& s) {
         s.ranks[0].at("optimizer_state_dict/param_alignment_paddings") =
             PythonValue::list({PythonValue::list({INT64_MAX, 0})});
       },
       {model, "parameter b"}},
      {"paddings too few",
       [](Small& s) {
         s.ranks[0].at("optimizer_state_dict/param_alignment_paddings") =
             PythonValue::list({PythonValue::list({0})});
       },
       {"param_alignment_paddings"}},
      {"experts",
       [](Small& s) { s.state("ds_zero_partition_groups") = PythonValue::list({}); },
       {rank_1, "ds_zero_partition_groups"}},
      {"a trained parameter that is frozen too",
       [](Small& s) {
         s.module.at("frozen_param_shapes") = PythonValue::dict({{"a", PythonValue::size({1})}});
         s.module.at("frozen_param_fragments") =
             PythonValue::dict({{"a", PythonValue::tensor({1})}});
       },
       {"a"}},
      {"a frozen parameter of another size",
       [](Small& s) {
         s.module.at("frozen_param_shapes") = PythonValue::dict({{"f", PythonValue::size({2})}});
         s.module.at("frozen_param_fragments") =
             PythonValue::dict({{"f", PythonValue::tensor({3})}});
       },
       {model, "frozen_param_fragments.f", "[3]"}},
      {"a class that is not known",
       [](Small& s) {
         s.module.at("note") = "system";
         s.module.at("note").kind = PythonValue::Kind::global;
       },
       {model, "system"}},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    TemporaryFolder folder;
    Small small;
    c.change(small);
    small.save(folder.path());
    const std::string message = refusal([&] { OpenedFolder opened(folder.path()); });
    CAPTURE(message);
    CHECK(message.empty() == c.expected.empty());
    for (const std::string& part : c.expected) {
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("DeepSpeed: without ZeRO the optimizer's state is named as left out") {
  for (const bool has_optimizer : {false, true}) {
    const TemporaryFolder folder;
    Small small;
    small.ranks.clear();
    small.module.erase("param_shapes");
    small.module.at("optimizer") =
        has_optimizer ? PythonValue::dict({{"state", PythonValue::dict()}}) : PythonValue();
    small.module.at("epoch") = 3;
    small.save(folder.path());
    const OpenedFolder opened(folder.path());
    CHECK(opened.provenance.format == "DeepSpeed");
    const std::vector<std::string>& unread = opened.training.unread;
    REQUIRE(unread.size() == (has_optimizer ? 2 : 1));
    CHECK(unread.front() == "epoch");
    CHECK(unread.back().starts_with("the state of the optimizer in mp_rank_00") == has_optimizer);
  }
}

TEST_CASE("DeepSpeed: the small checkpoint's elements are in their places") {
  TemporaryFolder folder;
  Small().save(folder.path());
  OpenedFolder opened(folder.path());
  CHECK(opened.training.step == 4);
  CHECK(opened.training.skipped_steps == 1);
  TensorReader reader(opened.catalog);
  for (const char* kind : {"param", "exp_avg", "exp_avg_sq"}) {
    std::vector<float> a(6), b(3);
    reader.read(opened.catalog.at("a", kind, "test"), 0, 6, Dtype::f32, a.data());
    reader.read(opened.catalog.at("b", kind, "test"), 0, 3, Dtype::f32, b.data());
    CHECK(a == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(b == std::vector<float>{6, 7, 8});
  }
}

TEST_CASE("DeepSpeed: files that are missing, foreign or damaged are named") {
  struct Case {
    const char* what;
    std::function<void(const fs::path&)> change;
    std::vector<std::string> expected;
    acc::Errc code = acc::Errc::config;
  };
  const auto tag = [](const fs::path& folder) { return folder / "global_step3"; };
  const std::string optim = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const std::vector<Case> cases = {
      {"rank 1 is missing",
       [&](const fs::path& f) { fs::remove(tag(f) / optim); },
       {"optimizer states of rank 1 are missing"}},
      {"all optimizer files are missing",
       [&](const fs::path& f) {
         for (const char* rank : {"0", "1", "2"}) {
           fs::remove(tag(f) /
                      ("bf16_zero_pp_rank_" + std::string(rank) + "_mp_rank_00_optim_states.pt"));
         }
       },
       {"global_step3", "_optim_states.pt"}},
      {"no model states",
       [&](const fs::path& f) { fs::remove(tag(f) / "mp_rank_00_model_states.pt"); },
       {"no *_model_states.pt"}},
      {"a second tensor-parallel rank",
       [&](const fs::path& f) {
         acc::test::write_text(tag(f) / "mp_rank_01_model_states.pt", "x");
       },
       {"mp_rank_01_model_states.pt", "tensor parallelism"},
       acc::Errc::not_supported},
      {"a pipeline's layer",
       [&](const fs::path& f) { acc::test::write_text(tag(f) / "layer_00-model_states.pt", "x"); },
       {"layer_00-model_states.pt", "pipeline"},
       acc::Errc::not_supported},
      {"an expert",
       [&](const fs::path& f) {
         acc::test::write_text(tag(f) / "layer_0_expert_1_mp_rank_00_model_states.pt", "x");
       },
       {"expert"},
       acc::Errc::not_supported},
      {"two stages over another",
       [&](const fs::path& f) {
         acc::test::write_text(tag(f) / "zero_pp_rank_0_mp_rank_00_model_states.pt", "x");
       },
       {"two checkpoints"}},
      {"two dtypes over another",
       [&](const fs::path& f) { fs::copy_file(tag(f) / optim, tag(f) / optim.substr(5)); },
       {"rank 1 has two files"}},
      {"latest names what is not there",
       [](const fs::path& f) { acc::test::write_text(f / "latest", "global_step4"); },
       {"latest", "global_step4"}},
      {"latest leads out",
       [](const fs::path& f) { acc::test::write_text(f / "latest", "../x"); },
       {""}},
      {"a truncated rank file",
       [&](const fs::path& f) { fs::resize_file(tag(f) / optim, 9000); },
       {optim}},
      {"an empty rank file",
       [&](const fs::path& f) { fs::resize_file(tag(f) / optim, 0); },
       {optim}},
      {"universal",
       [&](const fs::path& f) {
         fs::remove(tag(f) / "mp_rank_00_model_states.pt");
         fs::create_directory(tag(f) / "zero");
       },
       {"universal"},
       acc::Errc::not_supported},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    TemporaryFolder folder;
    fs::copy(kData / "ds_zero2_w3", folder.path(), fs::copy_options::recursive);
    c.change(folder.path());
    const std::string message = refusal([&] { OpenedFolder opened(folder.path()); }, {c.code});
    CAPTURE(message);
    CHECK_FALSE(message.empty());
    for (const std::string& part : c.expected) {
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("DeepSpeed: a damaged byte of the weights is found when it is read") {
  TemporaryFolder folder;
  fs::copy(kData / "ds_zero2_w3", folder.path(), fs::copy_options::recursive);
  OpenedFolder opened(folder.path());
  const StoredTensor& tensor = opened.catalog.at("transformer.wte.weight", "param", "test");
  const StoredPiece& piece = tensor.pieces.front();
  {
    std::fstream file(opened.catalog.files[piece.file].path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(piece.offset + 5));
    file.put('\x5a');
  }
  TensorReader reader(opened.catalog);
  CHECK(refusal([&] { reader.verify(tensor); }).find("optim_states.pt") != std::string::npos);
}

TEST_CASE("DeepSpeed: other folders are not detected as its checkpoints") {
  TemporaryFolder folder;
  CHECK_FALSE(deepspeed::is_checkpoint(folder.path()));
  CHECK_FALSE(deepspeed::is_checkpoint(folder.path() / "absent"));
  acc::test::write_text(folder.path() / "latest", "checkpoint_3");
  fs::create_directory(folder.path() / "checkpoint_3");
  acc::test::write_text(folder.path() / "checkpoint_3" / "model.safetensors", "x");
  CHECK_FALSE(deepspeed::is_checkpoint(folder.path()));
  // One whose tag is missing is damaged, also if weights are next to it.
  acc::test::write_text(folder.path() / "latest", "global_step4");
  acc::test::write_text(folder.path() / "model.safetensors", "x");
  CHECK_FALSE(deepspeed::is_checkpoint(folder.path()));
  fs::create_directory(folder.path() / "global_step3");
  acc::test::write_text(folder.path() / "global_step3" / "mp_rank_00_model_states.pt", "x");
  CHECK(deepspeed::is_checkpoint(folder.path()));
}

TEST_CASE("DeepSpeed: a parameter's part crosses the borders of sub-groups and ranks") {
  using deepspeed::FlatRun;
  // Two ranks with flats of 3, 0 and 4 each: parts of 4 and 3.
  const deepspeed::NamedShapes parameters = {{"a", {7}}, {"b", {3, 2}}};
  const auto runs = deepspeed::partitioned_runs(parameters, {{3, 0, 4}, {3, 0, 4}}, "test");
  CHECK(runs.at(0) == std::vector<FlatRun>{{0, 3, 0, 0, 0}, {3, 1, 0, 2, 0}, {4, 3, 1, 0, 0}});
  CHECK(runs.at(1) == std::vector<FlatRun>{{0, 3, 0, 2, 1}, {3, 3, 1, 2, 1}});
  // Stage 2: a group of 5 with one element of padding after each, ranks of 4, 0 and 4.
  const auto groups =
      deepspeed::group_runs({{"a", {3}}, {"b", {2}}}, 0, {{4}, {0}, {4}}, {1, 1}, "test");
  CHECK(groups.at(0) == std::vector<FlatRun>{{0, 3, 0, 0, 0}});
  CHECK(groups.at(1) == std::vector<FlatRun>{{0, 2, 2, 0, 0}});
}
