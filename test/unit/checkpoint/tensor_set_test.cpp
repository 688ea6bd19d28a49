// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/safetensors/tensor_set.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "support/errors.hpp"
#include "support/safetensors_file.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using acc::test::SafetensorsWriter;
using acc::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

/// Tensors whose values count up from the tensor's number.
void write_set(const fs::path& folder, const SafetensorsPlan& plan) {
  float first = 0;
  for (const auto& file : plan.files) {
    SafetensorsWriter writer(folder / file.name, file.tensors, {{"format", "pt"}});
    for (const NamedTensor& tensor : file.tensors) {
      std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.shape)));
      std::iota(values.begin(), values.end(), first++);
      writer.append(values);
    }
    writer.commit();
  }
  if (!plan.index.empty()) {
    acc::test::write_text(folder / "model.safetensors.index.json", plan.index);
  }
}

std::string refusal_of_set(const fs::path& path) {
  return acc::test::refusal([&] { read_safetensors(path); });
}

std::vector<NamedTensor> four() {
  return {{"d", Dtype::f32, {5}},
          {"a", Dtype::f32, {2, 3}},
          {"c", Dtype::bf16, {4}},
          {"b", Dtype::f16, {100}}};
}

}  // namespace

TEST_CASE("tensors fill the files in the order of their names") {
  struct Row {
    std::uint64_t max_nbytes;
    std::vector<std::vector<std::string>> files;
  };
  // a: 24 bytes, b: 200, c: 8, d: 20.
  const Row rows[] = {
      {0, {{"a", "d", "c", "b"}}},
      {1000, {{"a", "d", "c", "b"}}},
      {252, {{"a", "d", "c", "b"}}},
      {251, {{"a", "c", "b"}, {"d"}}},
      {223, {{"a"}, {"c", "b"}, {"d"}}},
      {52, {{"b"}, {"a", "d", "c"}}},  // a tensor above the limit gets its own file
      {1, {{"a"}, {"b"}, {"c"}, {"d"}}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.max_nbytes);
    const SafetensorsPlan plan = plan_safetensors(four(), row.max_nbytes);
    std::vector<std::vector<std::string>> files;
    for (const auto& file : plan.files) {
      files.emplace_back();
      for (const NamedTensor& tensor : file.tensors) {
        files.back().push_back(tensor.name);
      }
    }
    CHECK(files == row.files);
    CHECK(plan.index.empty() == (files.size() == 1));
  }
  CHECK(plan_safetensors({}, 10).files.size() == 1);
}

TEST_CASE("files and index have the names that other packages use") {
  CHECK(plan_safetensors(four(), 0).files[0].name == "model.safetensors");
  const SafetensorsPlan plan = plan_safetensors(four(), 223, "weights");
  REQUIRE(plan.files.size() == 3);
  CHECK(plan.files[2].name == "weights-00003-of-00003.safetensors");
  const auto index = nlohmann::json::parse(plan.index);
  CHECK(index["metadata"]["total_size"] == 252);
  CHECK(index["weight_map"]["c"] == "weights-00002-of-00003.safetensors");
  CHECK(index["weight_map"].size() == 4);
}

TEST_CASE("one file and a set of files are read alike") {
  const TemporaryFolder folder;
  for (const std::uint64_t max_nbytes : {0, 223, 1}) {
    const fs::path path = folder.path() / std::to_string(max_nbytes);
    fs::create_directory(path);
    const SafetensorsPlan plan = plan_safetensors(four(), max_nbytes);
    write_set(path, plan);
    const Catalog catalog = read_safetensors(path);
    CHECK(catalog.files.size() == plan.files.size());
    REQUIRE(catalog.tensors.size() == 4);
    TensorReader reader(catalog);
    float first = 0;
    for (const auto& file : plan.files) {
      for (const NamedTensor& tensor : file.tensors) {
        const StoredTensor& stored = catalog.at(tensor.name, "param", "test");
        CHECK(stored.dtype == tensor.dtype);
        CHECK(stored.shape == tensor.shape);
        std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.shape)));
        reader.read(stored, 0, std::ssize(values), Dtype::f32, values.data());
        CHECK(values.front() == first);
        CHECK(values.back() == first + static_cast<float>(values.size() - 1));
        CHECK_FALSE(reader.verify(stored));  // the format has no checksums
        ++first;
      }
    }
  }
  CHECK(read_safetensors(folder.path() / "0" / "model.safetensors").tensors.size() == 4);
}

TEST_CASE("an index and files that disagree are refused by name") {
  const char* const kIndex = "model.safetensors.index.json";
  struct Row {
    const char* message;
    void (*spoil)(const fs::path& folder, nlohmann::json& index);
  };
  const Row rows[] = {
      {"lists the file model-00002-of-00003.safetensors (with tensor 'b'), which does not exist",
       [](const fs::path& folder, nlohmann::json&) {
         fs::remove(folder / "model-00002-of-00003.safetensors");
       }},
      {"'x' is listed in model-00001-of-00003.safetensors, which has none of that name",
       [](const fs::path&, nlohmann::json& index) {
         index["weight_map"]["x"] = "model-00001-of-00003.safetensors";
       }},
      {"model-00002-of-00003.safetensors: tensor 'c' is here; model.safetensors.index.json does "
       "not list it",
       [](const fs::path&, nlohmann::json& index) { index["weight_map"].erase("c"); }},
      {"tensor 'c' is here; model.safetensors.index.json says that it is in "
       "model-00001-of-00003.safetensors",
       [](const fs::path&, nlohmann::json& index) {
         index["weight_map"]["c"] = "model-00001-of-00003.safetensors";
       }},
      {"tensor 'c': expected the name of a .safetensors file of this folder",
       [](const fs::path&, nlohmann::json& index) {
         index["weight_map"]["c"] = "../model.safetensors";
       }},
      {"tensor 'c': expected the name of",
       [](const fs::path&, nlohmann::json& index) { index["weight_map"]["c"] = 7; }},
      {"expected an object 'weight_map'",
       [](const fs::path&, nlohmann::json& index) { index = nlohmann::json::array(); }},
      {"truncated",
       [](const fs::path& folder, nlohmann::json&) {
         fs::resize_file(folder / "model-00003-of-00003.safetensors", 90);
       }},
      {"expected one *.safetensors.index.json, found 2: a.safetensors.index.json, "
       "model.safetensors.index.json",
       [](const fs::path& folder, nlohmann::json&) {
         acc::test::write_text(folder / "a.safetensors.index.json", "{}");
       }},
      {"lists other files than model.safetensors, which is here too",
       [](const fs::path& folder, nlohmann::json&) {
         acc::test::write_text(folder / "model.safetensors", "");
       }},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    const fs::path path = folder.path() / std::to_string(&row - rows);
    fs::create_directory(path);
    const SafetensorsPlan plan = plan_safetensors(four(), 223);
    write_set(path, plan);
    auto index = nlohmann::json::parse(plan.index);
    row.spoil(path, index);
    acc::test::write_text(path / kIndex, index.dump());
    const std::string message = refusal_of_set(path);
    CAPTURE(message);
    CHECK(message.starts_with(path.string()));
    CHECK(message.find(row.message) != std::string::npos);
  }
  const fs::path path = folder.path() / "other";
  fs::create_directory(path);
  CHECK(refusal_of_set(path).find("found neither") != std::string::npos);
  acc::test::write_text(path / kIndex, "{\"weight_map\":");
  CHECK(refusal_of_set(path).find("not valid JSON") != std::string::npos);
  fs::remove(path / kIndex);
  const fs::path part = path / "model-00001-of-00002.safetensors";
  acc::test::write_text(part, "");
  CHECK(refusal_of_set(path) == part.string() +
                                    ": one of 2 files, but neither the others nor a "
                                    "*.safetensors.index.json are here");
  fs::remove(part);
  acc::test::write_text(path / "a.safetensors", "");
  acc::test::write_text(path / "b.safetensors", "");
  CHECK(refusal_of_set(path).find("expected one *.safetensors, found 2") != std::string::npos);
}

TEST_CASE("second names in the metadata are names of the same bytes") {
  using Metadata = std::map<std::string, std::string>;
  struct Row {
    Metadata metadata;
    std::vector<std::string> names;  ///< in addition to a to d
  };
  const Row rows[] = {
      {{{"format", "pt"}}, {}},
      {{{"format", "pt"}, {"x", "a"}, {"y", "a"}, {"z", "d"}}, {"x", "y", "z"}},
      {{{"format", "a"}}, {}},  // a key of its own
      {{{"b", "a"}}, {}},       // a tensor has the name
      {{{"x", "none"}}, {}},    // other metadata of a program
      {{{"x", "y"}, {"y", "a"}}, {"y"}},
  };
  for (const Row& row : rows) {
    for (const std::uint64_t max_nbytes : {0, 1}) {
      const TemporaryFolder folder;
      const SafetensorsPlan plan = plan_safetensors(four(), max_nbytes);
      write_set(folder.path(), plan);
      // In a set the last file names tensors of others, and the index may list second names.
      const auto& last = plan.files.back();
      SafetensorsWriter writer(folder.path() / last.name, last.tensors, row.metadata);
      for (const NamedTensor& tensor : last.tensors) {
        writer.append(std::vector<float>(static_cast<std::size_t>(numel_of(tensor.shape)), 5.0F));
      }
      writer.commit();
      if (!plan.index.empty() && !row.names.empty()) {
        auto index = nlohmann::json::parse(plan.index);
        index["weight_map"][row.names[0]] = plan.files.front().name;
        acc::test::write_text(folder.path() / "model.safetensors.index.json", index.dump());
      }
      const Catalog catalog = read_safetensors(folder.path());
      CHECK(catalog.tensors.size() == 4 + row.names.size());
      SharedBytes shared;
      for (const StoredTensor& tensor : catalog.tensors) {
        const StoredTensor* const other = shared.other(tensor);
        const bool is_second = std::ranges::find(row.names, tensor.name) != row.names.end();
        CHECK((other != nullptr) == is_second);
        if (other != nullptr) {
          CHECK(row.metadata.at(tensor.name) == (other->name));
        }
      }
    }
  }
}
