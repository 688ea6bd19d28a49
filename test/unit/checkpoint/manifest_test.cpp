// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/manifest.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/files/crc32.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <span>
#include <string>

namespace {

namespace fs = std::filesystem;
using namespace acc::checkpoint;
using acc::test::contains;
using acc::test::refusal;
using nlohmann::json;

std::uint32_t crc_of(std::string_view text) {
  return crc32(0, std::as_bytes(std::span(text)));
}

Manifest sample() {
  return {
      .writer = "acclaunch 0.1.0",
      .state_dict = "SHARDED_STATE_DICT",
      .strategy = "full_shard",
      .world_size = 2,
      .step = std::int64_t{1} << 60,
      .skipped_steps = 3,
      .optimizer = "adamw",
      .loss_scaler = {{"scale", 0.1}, {"a", std::numeric_limits<double>::infinity()}},
      .others = {{.step = 7, .skipped_steps = 1, .optimizer = "sgd", .loss_scaler = {{"a", 2.0}}}},
      .aliases = {{"lm_head.weight", "wte.weight \"é\""}},
      .local_layout = R"({"cut": [1, 2]})",
      .plans = {},
      .files = {{"optimizer_0/.metadata", 5, crc_of("bytes")},
                {.path = "__0_0.distcp", .nbytes = 3, .end_crc32 = crc_of("abc")}},
  };
}

// A manifest with a right checksum, whatever else is wrong with it.
std::string with_crc(const std::string& json_text) {
  const std::string body = "\n" + json_text.substr(1);
  return fmt::format("{{\"crc32\": \"{:08x}\",\n{}", crc_of(body), body);
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A folder as `sample` describes it.
void fill(const fs::path& folder) {
  write(folder / "optimizer_0/.metadata", "bytes");
  write(folder / "__0_0.distcp", "abc");
  write(folder / kManifestFile, format_manifest(sample()));
}

}  // namespace

TEST_CASE("a manifest is read as it was written") {
  const Manifest written = sample();
  const Manifest read = parse_manifest(format_manifest(written), "m");
  CHECK(read.writer == written.writer);
  CHECK(read.state_dict == written.state_dict);
  CHECK(read.strategy == written.strategy);
  CHECK(read.world_size == written.world_size);
  CHECK(read.step == written.step);
  CHECK(read.skipped_steps == written.skipped_steps);
  CHECK(read.optimizer == written.optimizer);
  CHECK(read.loss_scaler == written.loss_scaler);
  REQUIRE(read.others.size() == 1);
  CHECK(read.others[0].step == 7);
  CHECK(read.others[0].skipped_steps == 1);
  CHECK(read.others[0].optimizer == "sgd");
  CHECK(read.others[0].loss_scaler == written.others[0].loss_scaler);
  CHECK(read.aliases == written.aliases);
  CHECK(read.local_layout == written.local_layout);
  REQUIRE(read.files.size() == 2);
  CHECK(read.files[0].path == "optimizer_0/.metadata");
  CHECK(read.files[0].nbytes == 5);
  CHECK(read.files[0].crc32 == crc_of("bytes"));
  CHECK_FALSE(read.files[1].crc32.has_value());
  CHECK(read.files[1].end_crc32 == crc_of("abc"));
  CHECK(format_manifest(read) == format_manifest(written));
  CHECK(json::parse(format_manifest(written)).at("version") == 1);  // JSON to others, too
}

TEST_CASE("every changed byte and every truncation of a manifest is detected") {
  const std::string text = format_manifest(sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    CAPTURE(i);
    CHECK(refusal([&] { parse_manifest(changed, "m"); }).starts_with("m: damaged: "));
    CHECK(refusal([&] { parse_manifest(text.substr(0, i), "m"); }).starts_with("m: damaged: "));
  }
}

TEST_CASE("a wrong value in a manifest is named") {
  struct Row {
    const char* pointer;
    json value;
    const char* message;
  };
  const Row rows[] = {
      {"/version", 7, "m: has version 7, this build reads version 1"},
      {"/version", "1", "m: 'version': an integer from 0 to"},
      {"/writer", nullptr, "m: 'writer': a string expected, found null"},
      {"/world_size", 0, "m: 'world_size': an integer from 1 to 2147483647 expected, found 0"},
      {"/world_size", std::int64_t{1} << 31, "found 2147483648"},
      {"/step", -1, "m: 'step': an integer from 0"},
      {"/step", std::numeric_limits<std::uint64_t>::max(), "found 18446744073709551615"},
      {"/step", 1e300, "found 1e+300"},
      {"/skipped_steps", 1.5, "m: 'skipped_steps': an integer"},
      {"/loss_scaler", json::array(), "m: 'loss_scaler': an object expected, found []"},
      {"/loss_scaler/scale", "large", "m: 'loss_scaler.scale': a number expected, found \"large\""},
      {"/others/0/step", -1, "m: 'others[0].step': an integer from 0"},
      {"/aliases/lm_head.weight", 4, "m: 'aliases.lm_head.weight': a string expected"},
      {"/files", json::object(), "m: 'files': a list expected, found {}"},
      {"/files/1", "x", "m: 'files[1]': an object expected"},
      {"/files/1/nbytes", -4, "m: 'files[1].nbytes': an integer from 0"},
      {"/files/0/crc32", "12", "m: 'files[0].crc32': 8 hexadecimal digits expected, found \"12\""},
      {"/files/0/crc32", "0x123456", "8 hexadecimal digits"},
      {"/files/1/path", "optimizer_0/.metadata", "a different path in every entry"},
      {"/files/1/path", "/etc/passwd", "m: 'files[1].path': a path in the folder expected"},
      {"/files/1/path", "../x", "a path in the folder"},
      {"/files/1/path", "a/../../x", "a path in the folder"},
      {"/files/1/path", "a//", "a path in the folder"},
      {"/files/1/path", "", "a path in the folder"},
      {"/files/1/path", std::string("a\0b", 3), "a path in the folder"},
      {"/files/1/path", std::string(1000, 'x') + "/..",
       "a path in the folder expected, found \"xxx"},
  };
  json root = json::parse(format_manifest(sample()));
  root.erase("crc32");
  for (const Row& row : rows) {
    json changed = root;
    changed[json::json_pointer(row.pointer)] = row.value;
    const std::string message = refusal([&] { parse_manifest(with_crc(changed.dump()), "m"); });
    CAPTURE(row.pointer);
    CAPTURE(message);
    CHECK(contains(message, row.message));
    CHECK(message.size() < 250);
  }
  for (const auto& [key, value] : root.items()) {
    json changed = root;
    changed.erase(key);
    CHECK(refusal([&] { parse_manifest(with_crc(changed.dump()), "m"); }) ==
          "m: '" + key + "' is missing");
  }
  CHECK(refusal([&] {
          parse_manifest(with_crc("{" + std::string(1 << 20, '[')), "m");
        }).starts_with("m: damaged: "));
}

TEST_CASE("a manifest with a name that is not UTF-8 is not written") {
  Manifest manifest = sample();
  manifest.aliases["\xff"] = "x";
  CHECK(contains(refusal([&] { format_manifest(manifest); }), "is not UTF-8"));
}

TEST_CASE("a folder is checked against its manifest") {
  struct Row {
    std::function<void(const fs::path& folder)> damage;
    std::string file;
    std::string message;
  };
  const Row rows[] = {
      {[](const fs::path& folder) { fs::remove(folder / "__0_0.distcp"); }, "__0_0.distcp",
       "cannot read %: No such file or directory"},
      {[](const fs::path& folder) { write(folder / "__0_0.distcp", "ab"); }, "__0_0.distcp",
       "%: has 2 bytes, 3 expected by acc_checkpoint.json"},
      {[](const fs::path& folder) { fs::remove_all(folder / "optimizer_0"); },
       "optimizer_0/.metadata", "cannot read %: No such file or directory"},
      {[](const fs::path& folder) { write(folder / kManifestFile, "{}"); }, kManifestFile,
       "%: damaged: it does not begin with its checksum"},
  };
  for (const Row& row : rows) {
    const acc::test::TemporaryFolder folder;
    CHECK_FALSE(read_manifest(folder.path()).has_value());
    fill(folder.path());
    CHECK(read_manifest(folder.path()).value().step == std::int64_t{1} << 60);
    row.damage(folder.path());
    std::string expected = row.message;
    expected.replace(expected.find('%'), 1, (folder.path() / row.file).string());
    CHECK(refusal([&] { check_sizes(read_manifest(folder.path()).value(), folder.path()); }) ==
          expected);
  }
}

TEST_CASE("a file is checked against its listed checksum") {
  const acc::test::TemporaryFolder folder;
  fill(folder.path());
  const Manifest manifest = read_manifest(folder.path()).value();
  check_file(manifest, folder.path(), "optimizer_0/.metadata");
  check_file(manifest, folder.path(), "__0_0.distcp");
  write(folder.path() / "__0_0.distcp", "abd");
  CHECK(contains(refusal([&] { check_file(manifest, folder.path(), "__0_0.distcp"); }),
                 (folder.path() / "__0_0.distcp").string() + ": is not what this save wrote here"));
  write(folder.path() / "optimizer_0/.metadata", "bytfs");
  CHECK(
      contains(refusal([&] { check_file(manifest, folder.path(), "optimizer_0/.metadata"); }),
               (folder.path() / "optimizer_0/.metadata").string() + ": damaged: its checksum is "));
  CHECK(contains(refusal([&] { check_file(manifest, folder.path(), "other"); }),
                 "other: is not listed in acc_checkpoint.json"));
}
