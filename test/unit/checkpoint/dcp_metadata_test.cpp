// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/dcp/metadata.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;
using namespace acc::checkpoint::dcp;
using pickle::Writer;

namespace {

constexpr const char* kClasses = "torch.distributed.checkpoint.metadata";
using Push = std::function<void(Writer&)>;

Push text(const std::string& value) {
  return [=](Writer& w) { w.text(value); };
}
Push number(std::int64_t value) {
  return [=](Writer& w) { w.integer(value); };
}
Push global(const char* module, const char* name) {
  return [=](Writer& w) { w.global(module, name); };
}
void nothing(Writer& w) {
  w.none();
}

void tuple_of(Writer& w, const Shape& shape) {
  w.begin_tuple();
  for (const std::int64_t extent : shape) {
    w.integer(extent);
  }
  w.end_tuple();
}
Push size(const Shape& shape) {
  return [=](Writer& w) {
    w.global("torch", "Size").begin_tuple();
    tuple_of(w, shape);
    w.end_tuple().reduce();
  };
}
Push plain_tuple(const Shape& shape) {
  return [=](Writer& w) { tuple_of(w, shape); };
}
/// A path as pathlib pickles it.
Push path_object(const std::vector<std::string>& parts) {
  return [=](Writer& w) {
    w.global("pathlib", "PosixPath").begin_tuple();
    for (const std::string& part : parts) {
      w.text(part);
    }
    w.end_tuple().reduce();
  };
}

void object(Writer& w, const char* module, const char* name) {
  w.global(module, name).begin_tuple().end_tuple().new_object();
}

/// A tensor "t" of shape [4] in two chunks, and a value "v". Each case changes something.
struct Parts {
  const char* metadata_class = "Metadata";
  Push dtype = global("torch", "float32");
  std::string layout = "torch.strided";
  Push size = ::size({4});
  std::vector<Push> offsets = {::size({0}), ::size({3})}, sizes = {::size({3}), ::size({1})};
  std::vector<Push> stored_offsets = {::size({0}), ::size({3})};
  Push file = text("__0_0.distcp");
  Push offset = number(0), length = number(100);
  std::map<std::string, Push> more_info;
  std::map<std::string, Push> more_metadata;
  const char* value_class = "BytesStorageMetadata";
  bool value_stored = true;
};

void push_info(Writer& w, const Parts& parts) {
  object(w, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
  w.begin_dict().text("relative_path");
  parts.file(w);
  w.text("offset");
  parts.offset(w);
  w.text("length");
  parts.length(w);
  for (const auto& [key, push] : parts.more_info) {
    w.text(key);
    push(w);
  }
  w.end_dict().build();
}

void push_tensor(Writer& w, const Parts& parts) {
  object(w, kClasses, "TensorStorageMetadata");
  w.begin_dict().text("properties");
  object(w, kClasses, "TensorProperties");
  w.begin_tuple();
  parts.dtype(w);
  w.global("torch.serialization", "_get_layout").begin_tuple().text(parts.layout).end_tuple();
  w.reduce().boolean(false).integer(0).boolean(false).end_tuple().build();
  w.text("size");
  parts.size(w);
  w.text("chunks").begin_list();
  for (std::size_t i = 0; i < parts.offsets.size(); ++i) {
    object(w, kClasses, "ChunkStorageMetadata");
    w.begin_dict().text("offsets");
    parts.offsets[i](w);
    w.text("sizes");
    parts.sizes[i](w);
    w.end_dict().build();
  }
  w.end_list().end_dict().build();
}

void push_storage(Writer& w, const Parts& parts) {
  w.begin_dict();
  for (const Push& offset : parts.stored_offsets) {
    object(w, kClasses, "MetadataIndex");
    w.begin_dict().text("fqn").text("t").text("index").none().text("offset");
    offset(w);
    w.end_dict().build();
    push_info(w, parts);
  }
  if (parts.value_stored) {
    object(w, kClasses, "MetadataIndex");
    w.begin_dict().text("fqn").text("v").text("index").none().end_dict().build();
    push_info(w, parts);
  }
  w.end_dict();
}

std::string pickled(const Parts& parts) {
  Writer w;
  object(w, kClasses, parts.metadata_class);
  w.begin_dict().text("state_dict_metadata").begin_dict().text("t");
  push_tensor(w, parts);
  w.text("v");
  object(w, kClasses, parts.value_class);
  w.end_dict().text("storage_data");
  push_storage(w, parts);
  for (const auto& [key, push] : parts.more_metadata) {
    w.text(key);
    push(w);
  }
  w.end_dict().build();
  return w.finish();
}

Metadata parse(const std::string& bytes) {
  return parse_metadata(std::as_bytes(std::span(bytes)), "D/.metadata");
}

std::string refusal(const Parts& parts) {
  return acc::test::refusal([&] { return parse(pickled(parts)); });
}

std::string read_golden(const std::string& name) {
  return acc::test::file_text(std::string(ACC_TEST_DATA) + "/checkpoints/" + name + "/.metadata");
}

bool operator==(const Place& a, const Place& b) {
  return a.file == b.file && a.offset == b.offset && a.nbytes == b.nbytes;
}

}  // namespace

TEST_CASE("minimal metadata is read, and so are additions of other writers") {
  const auto check = [](const Parts& parts) {
    const Metadata metadata = parse(pickled(parts));
    REQUIRE(metadata.entries.size() == 2);
    const Entry& tensor = metadata.entries[0];
    CHECK(tensor.name == "t");
    CHECK(tensor.is_tensor);
    CHECK(tensor.dtype == Dtype::f32);
    CHECK(tensor.shape == Shape{4});
    REQUIRE(tensor.chunks.size() == 2);
    CHECK(tensor.chunks[1].box == Box{{3}, {1}});
    CHECK(tensor.chunks[1].place == Place{"__0_0.distcp", 0, 100});
    const Entry& value = metadata.entries[1];
    CHECK(value.name == "v");
    CHECK(!value.is_tensor);
    CHECK(value.value == Place{"__0_0.distcp", 0, 100});
    return metadata;
  };
  Parts parts;
  SUBCASE("no planner_data, storage_meta, version") {
    CHECK(check(parts).entries[0].path.empty());
  }
  SUBCASE("None for them") {
    parts.more_metadata = {{"planner_data", nothing}, {"version", nothing}};
    check(parts);
  }
  SUBCASE("paths") {
    parts.more_metadata["planner_data"] = [](Writer& w) {
      w.begin_dict().text("t").begin_tuple().text("t").end_tuple();
      w.text("gone").begin_tuple().text("gone").end_tuple().end_dict();
    };
    CHECK(check(parts).entries[0].path == Path{"t"});
  }
  SUBCASE("plain tuples for sizes") {
    parts.size = plain_tuple({4});
    parts.offsets[0] = parts.stored_offsets[0] = plain_tuple({0});
    check(parts);
  }
  SUBCASE("a path object") {
    parts.file = path_object({"__0_0.distcp"});
    check(parts);
  }
  SUBCASE("a transform field without a transform") {
    parts.more_info["transform_descriptors"] = nothing;
    check(parts);
  }
  SUBCASE("chunks and places in different orders, and places of nothing") {
    parts.stored_offsets = {size({3}), size({9}), size({0})};
    check(parts);
  }
}

TEST_CASE("files may be in subfolders") {
  Parts parts;
  parts.file = text("sub/__0_0.distcp");
  CHECK(parse(pickled(parts)).entries[1].value.file == "sub/__0_0.distcp");
  parts.file = path_object({"sub", "__0_0.distcp"});
  CHECK(parse(pickled(parts)).entries[1].value.file == "sub/__0_0.distcp");
}

TEST_CASE("errors in the metadata are named") {
  struct Case {
    const char* message;  // after "D/.metadata: "
    std::function<void(Parts&)> change;
  };
  const Case cases[] = {
      {"expected torch.distributed.checkpoint's Metadata",
       [](Parts& p) { p.metadata_class = "StorageMeta"; }},
      {"tensor 't': unsupported dtype torch.qint8",
       [](Parts& p) { p.dtype = global("torch", "qint8"); }},
      {"tensor 't': expected a dtype", [](Parts& p) { p.dtype = text("float32"); }},
      {"tensor 't': only strided tensors can be read",
       [](Parts& p) { p.layout = "torch.sparse_coo"; }},
      {"tensor 't': expected a torch.Size", [](Parts& p) { p.size = number(4); }},
      {"tensor 't': expected sizes of 0 or more", [](Parts& p) { p.size = size({-4}); }},
      {"tensor 't': shape [4611686018427387904, 2] has more elements",
       [](Parts& p) {
         p.size = size({std::int64_t{1} << 62, 2});
       }},
      {"tensor 't': a chunk with offsets [3] and sizes [2] lies outside of the shape [4]",
       [](Parts& p) { p.sizes[1] = size({2}); }},
      {"tensor 't': a chunk with offsets [9223372036854775807] and sizes [1] lies outside",
       [](Parts& p) { p.offsets[1] = size({INT64_MAX}); }},
      {"tensor 't': a chunk with offsets [3, 0] and sizes [1] lies outside",
       [](Parts& p) {
         p.offsets[1] = size({3, 0});
       }},
      {"tensor 't': its chunks do not make up the shape [5]: rows 4:5 are in no piece",
       [](Parts& p) { p.size = size({5}); }},
      {"tensor 't': its chunks do not make up the shape [4]: box [0:4] and box [3:4] overlap",
       [](Parts& p) { p.sizes[0] = size({4}); }},
      {"tensor 't': storage_data has no place for chunk [3:4]",
       [](Parts& p) { p.stored_offsets.pop_back(); }},
      {"'v': storage_data has no place for it", [](Parts& p) { p.value_stored = false; }},
      {"'v': expected a tensor or a value", [](Parts& p) { p.value_class = "StorageMeta"; }},
      {"tensor 't': its file '../x.distcp' is not inside the checkpoint's folder",
       [](Parts& p) { p.file = text("../x.distcp"); }},
      {"tensor 't': its file 'a/../../x' is not inside",
       [](Parts& p) { p.file = text("a/../../x"); }},
      {"tensor 't': its file '/etc/passwd' is not inside",
       [](Parts& p) {
         p.file = path_object({"/", "etc", "passwd"});
       }},
      {"tensor 't': its file '' is not inside", [](Parts& p) { p.file = text(""); }},
      {"tensor 't': its file 'a/' is not inside", [](Parts& p) { p.file = text("a/"); }},
      {"tensor 't': expected 'relative_path' to be text", [](Parts& p) { p.file = number(3); }},
      {"tensor 't': 'offset' is -1", [](Parts& p) { p.offset = number(-1); }},
      {"tensor 't': expected 'length' to be a number", [](Parts& p) { p.length = text("100"); }},
      {"tensor 't': is stored through a transform (transform_descriptors: zstd)",
       [](Parts& p) {
         p.more_info["transform_descriptors"] = [](Writer& w) {
           w.begin_list().text("zstd").end_list();
         };
       }},
      {"'t': its path in planner_data holds None",
       [](Parts& p) {
         p.more_metadata["planner_data"] = [](Writer& w) {
           w.begin_dict().text("t").begin_tuple().none().end_tuple().end_dict();
         };
       }},
      {"'t': its path in planner_data is that of 'a.b.3'",
       [](Parts& p) {
         p.more_metadata["planner_data"] = [](Writer& w) {
           w.begin_dict().text("t").begin_tuple().text("a.b").integer(3).end_tuple().end_dict();
         };
       }},
      {"'t': its path in planner_data has 300 keys",
       [](Parts& p) {
         p.more_metadata["planner_data"] = [](Writer& w) {
           w.begin_dict().text("t");
           tuple_of(w, Shape(300, 1));
           w.end_dict();
         };
       }},
      {"expected planner_data to be a dict",
       [](Parts& p) { p.more_metadata["planner_data"] = number(1); }},
  };
  for (const Case& c : cases) {
    Parts parts;
    c.change(parts);
    const std::string found = refusal(parts);
    CAPTURE(found);
    CHECK(found.starts_with(std::string("D/.metadata: ") + c.message));
  }
  Parts parts;
  parts.more_metadata["x"] = global("os", "system");
  CHECK(refusal(parts).find("os.system") != std::string::npos);
}

TEST_CASE("truncated or changed metadata of torch gives an Error or valid metadata") {
  const std::string good = read_golden("fsdp2_w4/pytorch_model_fsdp_0");
  REQUIRE(good.size() > 20'000);
  // Every length near the ends, then one in 37.
  for (std::size_t length = 0; length < good.size();
       length += length < 500 || length > good.size() - 500 ? 1 : 37) {
    CHECK_THROWS_AS(parse(good.substr(0, length)), acc::Error);
  }
  std::mt19937 generator(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    bad[generator() % bad.size()] ^= static_cast<char>(1U << generator() % 8);
    try {
      (void)parse(bad);
    } catch (const acc::Error& error) {
      CHECK((error.code() == acc::Errc::config || error.code() == acc::Errc::not_supported));
      ++refused;
    }
  }
  // Most bytes belong to names, which may have any value.
  CHECK(refused > 500);
}

TEST_CASE("formatted metadata is parsed to the same entries, at about 100 bytes per chunk") {
  std::vector<Entry> heads;
  std::vector<std::vector<Chunk>> chunks;
  for (int i = 0; i < 300; ++i) {
    const std::string name = "model.h." + std::to_string(i) + ".weight";
    heads.push_back({.name = name,
                     .path = {"model", name.substr(6)},
                     .is_tensor = true,
                     .dtype = i % 2 == 0 ? Dtype::bf16 : Dtype::f32,
                     .shape = {400, 8192},
                     .chunks = {},
                     .value = {}});
    for (int rank = 0; rank < 40; ++rank) {
      chunks.emplace_back().push_back(
          {.box = {{rank * 10, 0}, {10, 8192}},
           .place = {"__" + std::to_string(rank + 5000) + "_0.distcp",
                     static_cast<std::uint64_t>(i) * 100'000'000, 328'000}});
    }
  }
  heads.push_back({.name = "model.groups.1.lr",
                   .path = {"model", "groups", std::int64_t{1}, "lr"},
                   .is_tensor = false,
                   .dtype = {},
                   .shape = {},
                   .chunks = {},
                   .value = {"__3_0.distcp", 17, 23}});
  heads.push_back(
      {.name = "scalar", .path = {}, .is_tensor = true, .shape = {}, .chunks = {}, .value = {}});
  const VisitChunks visit = [&](std::size_t entry, const auto& each) {
    if (entry == 301) {
      each({.box = {}, .place = {"__0_0.distcp", std::uint64_t{1} << 40U, 1 << 20}});
      return;
    }
    for (std::size_t rank = 0; rank < 40; ++rank) {
      each(chunks[entry * 40 + rank].front());
    }
  };
  std::string bytes;
  const VisitBoxes boxes = [&](std::size_t entry, const auto& each) {
    visit(entry, [&](const Chunk& chunk) { each(chunk.box); });
  };
  format_metadata(
      heads, boxes, visit, [&](std::string_view piece) { bytes += piece; }, "an-id");
  CHECK(bytes.size() < 300 * 40 * 110);
  MESSAGE("bytes a chunk: ", bytes.size() / (300 * 40));
  const Metadata metadata = parse(bytes);
  REQUIRE(metadata.entries.size() == heads.size());
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const Entry& entry = metadata.entries[i];
    CHECK(entry.name == heads[i].name);
    CHECK(entry.path == heads[i].path);
    REQUIRE(entry.is_tensor == heads[i].is_tensor);
    CHECK(entry.value == heads[i].value);
    if (!entry.is_tensor) {
      continue;
    }
    CHECK(entry.dtype == heads[i].dtype);
    CHECK(entry.shape == heads[i].shape);
    std::size_t next = 0;
    visit(i, [&](const Chunk& chunk) {
      REQUIRE(next < entry.chunks.size());
      CHECK(entry.chunks[next].box == chunk.box);
      CHECK(entry.chunks[next++].place == chunk.place);
    });
    CHECK(next == entry.chunks.size());
  }
}
