// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/local/local_layout.hpp"

#include "acc/base/json.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "catalog/record_table.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

namespace acc::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The form of this JSON is described in docs/formats/acclaunch.md.
json encode(const LocalFlat& flat) {
  json members = json::array();
  for (const LocalFlat::Member& each : flat.members) {
    members.push_back({{"name", each.name},
                       {"aliases", each.aliases},
                       {"shape", each.shape},
                       {"offset", each.offset}});
  }
  return {{"key", flat.key},
          {"padded_numel", flat.padded_numel},
          {"shards", flat.shards},
          {"members", std::move(members)}};
}

/// Checks numbers from a file before anything is computed from them.
void check_flat(const LocalFlat& flat, const fs::path& path) {
  if (flat.shards < 1 || flat.padded_numel < 0 || flat.padded_numel % flat.shards != 0) {
    fail(path, "flat parameter '" + flat.key + "': impossible layout");
  }
  for (const LocalFlat::Member& each : flat.members) {
    check_shape(each.shape, path.string() + ": '" + each.name + "'");
    const std::int64_t numel = numel_of(each.shape);
    if (each.offset < 0 || numel > flat.padded_numel || each.offset > flat.padded_numel - numel) {
      fail(path, "parameter '" + each.name + "' reaches beyond flat parameter '" + flat.key + "'");
    }
  }
}

LocalFlat decode(const json& value, const fs::path& path) {
  LocalFlat flat{.key = value.at("key"),
                 .padded_numel = value.at("padded_numel"),
                 .shards = value.at("shards"),
                 .members = {}};
  for (const json& each : value.at("members")) {
    flat.members.push_back(
        {each.at("name"), each.at("aliases"), each.at("shape"), each.at("offset")});
  }
  check_flat(flat, path);
  return flat;
}

/// Reads one rank's file.
class RankFile {
 public:
  RankFile(const InputPath& path, Catalog& catalog)
      : opened_(path), number_(catalog.file(path)), records_(catalog) {
    const pickle::Value::Items pairs = opened_.root().pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (pairs[i]->is(pickle::Value::Kind::text)) {
        values_.emplace(pairs[i]->text, pairs[i + 1]);
      }
    }
  }

  /// The tensor of a key, and the place of its bytes in the catalog.
  struct Found {
    torch::TensorRef tensor;
    std::uint32_t file;
    std::int32_t record;
  };
  Found find(const std::string& key) {
    const auto value = values_.find(key);
    if (value == values_.end() || !torch::TorchFile::is_tensor(*value->second)) {
      fail(path(), "has no tensor '" + key + "'");
    }
    const torch::TensorRef tensor = opened_.row_major_tensor(*value->second);
    return {tensor, number_, records_.record(number_, tensor.bytes, key)};
  }
  StoredTensor whole_tensor(const std::string& key) {
    return records_.tensor(number_, find(key).tensor, key, "param", key);
  }
  [[nodiscard]] const fs::path& path() const { return opened_.file().path(); }

 private:
  torch::TorchFile opened_;
  std::map<std::string_view, const pickle::Value*> values_;  ///< by key; there may be thousands
  std::uint32_t number_;
  RecordTable records_;
};

/// Adds the boxes of a member that lie in a shard, which is stored as `found`.
void add_pieces(const LocalFlat::Member& member, std::int64_t shard_begin, std::int64_t shard_numel,
                const RankFile::Found& found, std::vector<StoredPiece>& pieces) {
  const std::int64_t begin = std::max(member.offset, shard_begin);
  const std::int64_t end =
      std::min(member.offset + numel_of(member.shape), shard_begin + shard_numel);
  if (begin >= end) {
    return;
  }
  const std::uint64_t size = size_of(found.tensor.dtype);
  std::uint64_t at =
      found.tensor.bytes.offset + static_cast<std::uint64_t>(begin - shard_begin) * size;
  for (Box& box : boxes_of_range(member.shape, begin - member.offset, end - member.offset)) {
    const std::uint64_t nbytes = static_cast<std::uint64_t>(box.numel()) * size;
    pieces.push_back({std::move(box), found.file, at, nbytes, Packing::raw, found.record});
    at += nbytes;
  }
}

using Tensors = std::vector<StoredTensor>;

/// Reads a rank's shard of a flat parameter. `tensors`: one per member.
void read_shard(const LocalFlat& flat, int rank, RankFile& file, Tensors& tensors) {
  const std::int64_t shard_numel = flat.padded_numel / flat.shards;
  const RankFile::Found found = file.find(flat.key);
  if (found.tensor.shape != Shape{shard_numel}) {
    fail(file.path(), "'" + flat.key + "': expected shape " + to_string(Shape{shard_numel}) +
                          ", found " + to_string(found.tensor.shape));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (rank > 0 && tensors[i].dtype != found.tensor.dtype) {
      fail(file.path(), "'" + flat.key + "' has a different dtype than in rank 0's file");
    }
    tensors[i].dtype = found.tensor.dtype;
    add_pieces(flat.members[i], rank * shard_numel, shard_numel, found, tensors[i].pieces);
  }
}

/// Adds the members to the catalog, under all of their names.
void add_members(const LocalFlat& flat, Tensors tensors, Catalog& catalog) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const std::string& alias : flat.members[i].aliases) {
      catalog.tensors.push_back(tensors[i]);
      catalog.tensors.back().name = alias;
    }
    catalog.tensors.push_back(std::move(tensors[i]));
  }
}

}  // namespace

std::string format_local_layout(const std::vector<LocalModel>& models) {
  json root = json::array();
  for (const LocalModel& model : models) {
    json flats = json::array();
    for (const LocalFlat& flat : model.flats) {
      flats.push_back(encode(flat));
    }
    root.push_back({{"flats", std::move(flats)}, {"buffers", model.buffers}});
  }
  return text_of_json(root);
}

std::vector<LocalModel> parse_local_layout(const std::string& text, const fs::path& path) {
  try {
    std::vector<LocalModel> models;
    for (const json& each : json_from_text<json>(text)) {
      LocalModel model{.flats = {}, .buffers = each.at("buffers")};
      for (const json& flat : each.at("flats")) {
        model.flats.push_back(decode(flat, path));
      }
      models.push_back(std::move(model));
    }
    return models;
  } catch (const json::exception& error) {
    fail(path, "damaged layout of local shards: " + text_of_fault(error));
  }
}

// Visits the ranks in order and collects the pieces of all members, because a member may span
// several ranks' shards. Only ranks below the number of shards hold a flat parameter once.
void read_local_model(const InputPath& folder, int index, const LocalModel& model,
                      Catalog& catalog) {
  int ranks = 1;
  std::vector<Tensors> members;  // one list per flat parameter
  for (const LocalFlat& flat : model.flats) {
    ranks = std::max(ranks, flat.shards);
    members.emplace_back();
    for (const LocalFlat::Member& member : flat.members) {
      members.back().push_back({member.name, "param", flat.key, Dtype::f32, member.shape, {}});
    }
  }
  Tensors buffers;
  // Only one file is open at a time, because there may be thousands.
  for (int rank = 0; rank < ranks; ++rank) {
    RankFile file(folder / accelerate::local_model_file(index, rank), catalog);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (rank < model.flats[i].shards) {
        read_shard(model.flats[i], rank, file, members[i]);
      }
    }
    if (rank == 0) {
      for (const std::string& name : model.buffers) {
        buffers.push_back(file.whole_tensor(name));
      }
    }
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    add_members(model.flats[i], std::move(members[i]), catalog);
  }
  std::ranges::move(buffers, std::back_inserter(catalog.tensors));
}

}  // namespace acc::checkpoint
