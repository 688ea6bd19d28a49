// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/verify.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "dcp/planned_pieces.hpp"
#include "random_table.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::test::contains;
using acc::test::refusal;
using namespace acc::checkpoint::dcp;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFolder = "pytorch_model_fsdp_0";

/// `shards` 0: cut in rows.
FolderPlan random_plan(std::mt19937& generator, int shards, int world_size) {
  const auto table = acc::test::random_table(generator, std::max(shards, 1));
  FolderPlan plan;
  plan.tensors = table.tensors;
  plan.world_size = world_size;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "v" + std::to_string(i);
    const auto writer = static_cast<int>(generator() % static_cast<std::uint32_t>(world_size));
    plan.values.push_back({.name = "model." + name,
                           .path = {"model", name},
                           .pickle = pickle::Writer().text(std::string(9, 'x')).finish(),
                           .rank = writer});
  }
  plan.rule = shards == 0 ? cut_by_rows(plan.tensors, world_size)
                          : cut_arrays(table.arrays, plan.tensors, world_size);
  return plan;
}

std::string metadata_of(const FolderPlan& plan) {
  std::string text;
  write_metadata(plan, [&](std::string_view part) { text += part; });
  return text;
}

/// Returns a piece as text, for comparisons.
std::string words_of(const Box& box, const std::string& file, std::uint64_t offset,
                     std::uint64_t nbytes) {
  return to_string(box) + " " + file + " " + std::to_string(offset) + " " + std::to_string(nbytes);
}

/// A folder that we wrote, with its manifest. Element i of array a has the bytes (a, i) mixed.
struct Saved {
  explicit Saved(const FolderPlan& plan) {
    const fs::path inner = path() / kFolder;
    fs::create_directories(inner);
    const auto fill = [&](const PlannedChunk& chunk, const torch::Sink& sink) {
      for (std::int64_t i = 0; i < chunk.box.numel(); ++i) {
        const std::uint64_t value =
            (static_cast<std::uint64_t>(chunk.source_begin + i) + 1) * 0x9e3779b97f4a7c15U +
            chunk.source;
        sink(std::as_bytes(std::span(&value, 1)).first(size_of(plan.tensors[chunk.tensor].dtype)));
      }
    };
    manifest.world_size = plan.world_size;
    manifest.plans[kFolder] = format_plan(plan);
    for (int rank = 0; rank < plan.world_size; ++rank) {
      const auto nbytes = write_rank_file(inner, plan, rank, fill);
      manifest.files.push_back({fmt::format("{}/{}", kFolder, file_name(rank)), nbytes, {}});
    }
    const WrittenMetadata written = write_metadata_file(inner, plan);
    manifest.files.push_back({std::string(kFolder) + "/.metadata", written.nbytes, written.crc32});
    write_manifest();
  }

  void write_manifest() const {
    std::ofstream(path() / kManifestFile, std::ios::binary) << format_manifest(manifest);
  }
  /// Changes the plan in the manifest.
  void change(const std::function<void(json& plan)>& changed) {
    json plan = json::parse(manifest.plans[kFolder]);
    changed(plan);
    manifest.plans[kFolder] = plan.dump();
    write_manifest();
  }
  [[nodiscard]] const fs::path& path() const { return folder.path(); }

  acc::test::TemporaryFolder folder;
  Manifest manifest;
};

std::vector<std::vector<std::byte>> contents_of(const Stored& stored) {
  TensorReader reader(stored.catalog);
  std::vector<std::vector<std::byte>> contents;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    const std::int64_t numel = numel_of(tensor.shape);
    auto& bytes = contents.emplace_back(static_cast<std::size_t>(numel) * size_of(tensor.dtype));
    reader.read(tensor, 0, numel, tensor.dtype, bytes.data());
  }
  return contents;
}

FolderPlan some_plan(int shards = 2, int world_size = 4) {
  std::mt19937 generator(7);
  return random_plan(generator, shards, world_size);
}

}  // namespace

TEST_CASE("a plan that was written and read gives the pieces of .metadata, for any range") {
  std::mt19937 generator(3);
  std::size_t compared = 0;
  for (int world_size = 1; world_size <= 8; ++world_size) {
    for (int shards = 0; shards <= world_size; ++shards) {
      if (shards > 0 && world_size % shards != 0) {
        continue;
      }
      CAPTURE(world_size);
      CAPTURE(shards);
      const FolderPlan plan = random_plan(generator, shards, world_size);
      const std::string text = metadata_of(plan);
      const Metadata metadata = parse_metadata(std::as_bytes(std::span(text)), "m");
      auto read = parse_plan(format_plan(plan), world_size, "m", "plans.x");
      REQUIRE(read);
      CHECK(metadata_of(*read) == text);
      CHECK(format_plan(*read) == format_plan(plan));
      constexpr std::uint32_t kFirstFile = 5;
      const PlannedPieces pieces(std::move(*read), kFirstFile);
      for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        const Shape& shape = plan.tensors[i].shape;
        const std::int64_t numel = numel_of(shape);
        for (int round = 0; round < 6; ++round) {
          const auto below = [&](std::int64_t end) {
            return static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(end + 1));
          };
          const std::int64_t begin = round == 0 ? 0 : below(numel);
          const std::int64_t end = round == 0 ? numel : begin + below(numel - begin);
          std::vector<std::string> expected, found;
          for (const Chunk& chunk : metadata.entries[i].chunks) {
            const std::int64_t first =
                chunk.box.numel() == 0 ? end : element_in_tensor(shape, chunk.box, 0);
            if (first < end && first + chunk.box.numel() > begin && begin < end) {
              expected.push_back(
                  words_of(chunk.box, chunk.place.file, chunk.place.offset, chunk.place.nbytes));
            }
          }
          pieces.for_each_piece(i, begin, end, [&](const StoredPiece& piece) {
            CHECK(piece.packing == Packing::archive);
            found.push_back(words_of(piece.box,
                                     file_name(static_cast<int>(piece.file - kFirstFile)),
                                     piece.offset, piece.nbytes));
          });
          CHECK(found == expected);
          compared += found.size();
        }
      }
    }
  }
  CHECK(compared > 1000);
}

// Readers must compute the places that older builds wrote, too. If this test fails because
// the layout of files was changed on purpose, kPlanVersion must be raised.
TEST_CASE("the layout of version 1 of a plan does not change") {
  static_assert(kPlanVersion == 1);
  std::uint32_t crc = 0;
  const std::vector<PlannedTensor> tensors = {
      {.name = "model.a", .path = {"model", "a"}, .dtype = Dtype::f32, .shape = {300, 70}},
      {.name = "model.b", .path = {"model", "b"}, .dtype = Dtype::bf16, .shape = {5, 6, 7}},
      {.name = "model.c", .path = {"model", "c"}, .dtype = Dtype::f64, .shape = {400'001}}};
  for (const int shards : {1, 2, 6}) {
    const std::vector<CutArray> arrays = {
        {.members = {{0, 0}, {2, 21'000}}, .padded_numel = 421'002, .shards = shards},
        {.members = {{1, 0}}, .padded_numel = 210, .rank_zero_only = true}};
    const FolderPlan plan{.tensors = tensors,
                          .values = {{.name = "model.v",
                                      .path = {"model", "v"},
                                      .pickle = pickle::Writer().integer(5).finish(),
                                      .rank = 0}},
                          .world_size = 6,
                          .rule = cut_arrays(arrays, tensors, 6)};
    const std::string text = metadata_of(plan);
    crc = crc32(crc, std::as_bytes(std::span(text)));
  }
  CHECK(crc == 2'814'295'597U);
}

TEST_CASE("a folder of ours is read by its plan, without .metadata") {
  for (const auto& [shards, world_size] : {std::pair(0, 3), {1, 4}, {2, 6}, {5, 5}}) {
    CAPTURE(shards);
    const Saved saved(some_plan(shards, world_size));
    const auto expected = contents_of(open_checkpoint(saved.path() / kFolder));
    const Stored whole = open_checkpoint(saved.path());
    CHECK(std::ranges::all_of(whole.catalog.tensors,
                              [](const StoredTensor& tensor) { return tensor.rule != nullptr; }));
    CHECK(contents_of(whole) == expected);
    CHECK(conversion::verify(saved.path(), 2).damaged.empty());

    fs::remove(saved.path() / kFolder / kMetadataFile);
    const Stored stored = open_checkpoint(saved.path());
    CHECK(stored.provenance.world_size == world_size);
    CHECK(stored.provenance.format == "torch DCP");
    CHECK(contents_of(stored) == expected);
    const auto damaged = conversion::verify(saved.path(), 2).damaged;
    REQUIRE(damaged.size() == 1);
    CHECK(damaged[0].file == saved.path() / kFolder / kMetadataFile);
    CHECK(contains(damaged[0].reason, "No such file"));
  }
}

TEST_CASE("values are found by the plan, and step entries are not read if the step is known") {
  FolderPlan plan;
  plan.world_size = 2;
  plan.tensors = {{.name = "optimizer.state.w.exp_avg",
                   .path = {"optimizer", "state", "w", "exp_avg"},
                   .dtype = Dtype::f32,
                   .shape = {8}},
                  {.name = "optimizer.state.w.step",
                   .path = {"optimizer", "state", "w", "step"},
                   .dtype = Dtype::f32,
                   .shape = {}}};
  const auto value = [&](const char* key, double number) {
    plan.values.push_back({.name = std::string("optimizer.param_groups.0.") + key,
                           .path = {"optimizer", "param_groups", std::int64_t{0}, key},
                           .pickle = pickle::Writer().real(number).finish(),
                           .rank = 0});
  };
  value("lr", 0.25);
  value("weight_decay", 0.5);
  plan.rule = cut_by_rows(plan.tensors, plan.world_size);
  const acc::test::TemporaryFolder folder;
  std::vector<std::uint64_t> nbytes;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    nbytes.push_back(write_rank_file(
        folder.path(), plan, rank, [](const PlannedChunk& chunk, const torch::Sink& sink) {
          const std::vector<float> values(static_cast<std::size_t>(chunk.box.numel()), 6.0F);
          sink(std::as_bytes(std::span(values)));
        }));
  }
  for (const std::optional<std::int64_t> known : {std::optional<std::int64_t>(), {9}}) {
    Catalog catalog;
    TrainingState training;
    training.step = known;
    Provenance provenance;
    read_planned_folder(folder.path(), plan, nbytes, catalog, training, provenance);
    catalog.index();
    CHECK(training.step == known.value_or(6));
    REQUIRE(training.groups.size() == 1);
    CHECK(training.groups[0].hyper_parameters.at("lr") == 0.25);
    CHECK(training.groups[0].hyper_parameters.at("weight_decay") == 0.5);
    CHECK(catalog.find("w", "exp_avg") != nullptr);
  }
}

TEST_CASE("a plan of another version is ignored") {
  Saved saved(some_plan());
  const auto expected = contents_of(open_checkpoint(saved.path() / kFolder));
  saved.change([](json& plan) { plan = {{"version", kPlanVersion + 1}}; });
  const Stored stored = open_checkpoint(saved.path());
  CHECK(std::ranges::none_of(stored.catalog.tensors,
                             [](const StoredTensor& tensor) { return tensor.rule != nullptr; }));
  CHECK(contents_of(stored) == expected);
  fs::remove(saved.path() / kFolder / kMetadataFile);
  CHECK(contains(refusal([&] { open_checkpoint(saved.path()); }), kMetadataFile));
}

TEST_CASE("a file of another size is refused when it is first opened") {
  const Saved saved(some_plan());
  const Stored stored = open_checkpoint(saved.path());
  const fs::path file =
      stored.catalog.files[stored.catalog.at("t1", "param", "").all_pieces().back().file];
  const std::uintmax_t nbytes = fs::file_size(file);
  fs::resize_file(file, nbytes - 1);
  CHECK(refusal([&] { contents_of(stored); })
            .starts_with(file.string() + ": has " + std::to_string(nbytes - 1) + " bytes, " +
                         std::to_string(nbytes) + " expected"));
  fs::remove(file);
  CHECK(refusal([&] { contents_of(stored); }).starts_with("cannot open " + file.string()));
  const auto damaged = conversion::verify(saved.path(), 1).damaged;
  CHECK(std::ranges::any_of(damaged, [&](const conversion::Damage& each) {
    return contains(each.reason, file.string());
  }));
}

TEST_CASE("a file of another rank or step is refused, although its size and checksums are right") {
  FolderPlan plan;
  plan.world_size = 2;
  plan.tensors = {
      {.name = "model.w", .path = {"model", "w"}, .dtype = Dtype::f32, .shape = {8, 3}}};
  plan.values = {{.name = "optimizer.param_groups.0.lr",
                  .path = {"optimizer", "param_groups", std::int64_t{0}, "lr"},
                  .pickle = pickle::Writer().real(0.5).finish(),
                  .rank = 0},
                 {.name = "optimizer.param_groups.0.eps",
                  .path = {"optimizer", "param_groups", std::int64_t{0}, "eps"},
                  .pickle = pickle::Writer().real(0.1).finish(),
                  .rank = 1}};
  plan.rule = cut_by_rows(plan.tensors, plan.world_size);
  plan.step = 4;
  Saved saved(plan);
  const auto expected = contents_of(open_checkpoint(saved.path()));
  plan.step = 5;
  const Saved later(plan);
  struct Case {
    const Saved& from;
    int from_rank, to_rank;
  };
  for (const Case& each : {Case{saved, 1, 0}, {saved, 0, 1}, {later, 0, 0}, {later, 1, 1}}) {
    CAPTURE(each.from_rank);
    CAPTURE(each.to_rank);
    const fs::path file = saved.path() / kFolder / file_name(each.to_rank);
    const std::string whole = acc::test::file_text(file.string());
    fs::copy_file(each.from.path() / kFolder / file_name(each.from_rank), file,
                  fs::copy_options::overwrite_existing);
    const std::string refused = refusal([&] { contents_of(open_checkpoint(saved.path())); });
    CHECK(refused.starts_with(file.string()));
    CHECK(contains(refused, "of another rank, step or checkpoint"));
    CHECK(!conversion::verify(saved.path(), 1).damaged.empty());
    std::ofstream(file, std::ios::binary) << whole;
  }
  CHECK(contents_of(open_checkpoint(saved.path())) == expected);
  saved.change([](json& p) { p.erase("step"); });  // of an older version, without marks
  CHECK(contents_of(open_checkpoint(saved.path())) == expected);
}

TEST_CASE("a damaged plan is refused by name") {
  struct Case {
    const char* message;
    std::function<void(json& plan)> change;
  };
  const Case cases[] = {
      {"'plans.pytorch_model_fsdp_0.version' is missing", [](json& p) { p.erase("version"); }},
      {"'plans.pytorch_model_fsdp_0.tensors' is missing", [](json& p) { p.erase("tensors"); }},
      {".world_size': an integer from 4 to 4 expected, found 2000000000",
       [](json& p) { p["world_size"] = 2'000'000'000; }},
      {".tensors[0].dtype': a torch dtype expected, found \"float31\"",
       [](json& p) { p["tensors"][0]["dtype"] = "float31"; }},
      {".tensors[0].shape[0]': an integer from 0 to ",
       [](json& p) { p["tensors"][0]["shape"] = {-1}; }},
      {".tensors[0].shape': ",
       [](json& p) {
         p["tensors"][0]["shape"] = {1 << 30, 1 << 30, 1 << 30};
       }},
      {".tensors[0]': less than 2^56 elements in all expected",
       [](json& p) {
         p["tensors"][0]["shape"] = {1 << 30, 1 << 30};
       }},
      {".tensors[0].path[0]': an integer from 0 to ",
       [](json& p) { p["tensors"][0]["path"][0] = 1.5; }},
      {".step': an integer from 0 to ", [](json& p) { p["step"] = -1; }},
      {".values[0].rank': an integer from 0 to 3 expected, found 4",
       [](json& p) { p["values"][0]["rank"] = 4; }},
      {".values[0].pickle_nbytes': an integer from 0 to ",
       [](json& p) { p["values"][0]["pickle_nbytes"] = -1; }},
      {".arrays[0].shards': an integer from 1 to 4 expected, found 0",
       [](json& p) { p["arrays"][0]["shards"] = 0; }},
      {".arrays': an array of 12 elements cannot be cut into 3 equal shards for 4 ranks",
       [](json& p) { p["arrays"][0]["shards"] = 3; }},
      {".arrays': tensor number", [](json& p) { p["arrays"][0]["members"] = json::array(); }},
      {".arrays[0].members[0]': a tensor's number and its offset expected",
       [](json& p) { p["arrays"][0]["members"][0].push_back(1); }},
      {".arrays[0].members[0][0]': an integer from 0 to ",
       [](json& p) { p["arrays"][0]["members"][0][0] = 1'000'000; }},
      {" does not lie in its array",
       [](json& p) { p["arrays"][0]["members"][0][1] = std::int64_t{1} << 56; }},
      {".arrays[0].rank_zero_only': true or false expected",
       [](json& p) { p["arrays"][0]["rank_zero_only"] = 1; }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.message);
    Saved saved(some_plan());
    saved.change(c.change);
    const std::string message = refusal([&] { open_checkpoint(saved.path()); });
    CAPTURE(message);
    CHECK(message.starts_with((saved.path() / kManifestFile).string() + ": 'plans.pytorch"));
    CHECK(contains(message, c.message));
  }
  Saved saved(some_plan());
  saved.manifest.files[1].path = "pytorch_model_fsdp_0/__9_0.distcp";
  saved.write_manifest();
  CHECK(contains(refusal([&] { open_checkpoint(saved.path()); }),
                 "'files' has no pytorch_model_fsdp_0/__1_0.distcp"));
}

TEST_CASE("a plan that does not match the files is detected when they are read") {
  Saved saved(some_plan());
  saved.change([](json& plan) { plan["values"][0]["pickle_nbytes"] = 1000; });
  CHECK(contains(refusal([&] { contents_of(open_checkpoint(saved.path())); }),
                 (saved.path() / kFolder).string()));
}

TEST_CASE("a manifest stores plans as JSON objects") {
  Manifest manifest;
  manifest.plans = {{"a", R"({"b":[1,2]})"}, {"c \"d\"", "{}"}};
  const std::string text = format_manifest(manifest);
  CHECK(contains(text, "\n  \"a\": {\"b\":[1,2]},\n"));
  CHECK(parse_manifest(text, "m").plans == manifest.plans);
}
