// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/json_form.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/safetensors/header.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace acc::checkpoint::dcp {

namespace fs = std::filesystem;

// HuggingFaceStorageWriter writes one safetensors file per rank and no `.metadata`. The header of
// each file says where its tensors begin in the whole ones. The shape of a whole tensor is not
// stored; it is the smallest one that contains all shards, and the shards must cover it.
namespace {

constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";

std::vector<std::string> shards_in(const InputPath& folder) {
  auto shards = folder.names_of(
      [](const std::string& name) { return fs::path(name).extension() == ".safetensors"; });
  if (shards.empty()) {
    throw Error(Errc::config, folder.string() + ": no .safetensors file in it");
  }
  return shards;
}

/// The offsets of a shard's tensors in the whole tensors, from the header's DCP_SHARDING_INFO.
class ShardOffsets {
 public:
  ShardOffsets(const SafetensorsHeader& header, const fs::path& path) : path_(path) {
    if (const auto info = header.metadata.find(kShardingInfo); info != header.metadata.end()) {
      // Tensor, saved_offsets and number; printing a value for a message recurses.
      constexpr int kMaxDepth = 3;
      if (json_form(info->second).depth > kMaxDepth) {
        fail("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
      }
      info_ = json_from_text<nlohmann::json>(info->second, nullptr, false);
      if (!info_.is_object()) {
        fail("is not a JSON object");
      }
    }
  }

  /// Returns the offsets of a tensor. A file without the information has whole tensors.
  Shape of(const TensorEntry& tensor) const {
    if (info_.is_null()) {
      return Shape(tensor.shape.size(), 0);
    }
    const auto found = info_.find(tensor.name);
    if (found == info_.end() || !found->is_object() || !found->contains("saved_offsets")) {
      fail("has no saved_offsets of tensor '" + tensor.name + "'");
    }
    const nlohmann::json& offsets = (*found)["saved_offsets"];
    const bool fits =
        offsets.is_array() && offsets.size() == tensor.shape.size() &&
        std::ranges::all_of(offsets, [](const auto& offset) {
          return offset.is_number_unsigned() && offset.template get<std::uint64_t>() < kTooLarge;
        });
    if (!fits) {
      fail("has saved_offsets " + text_of_json(offsets) + " of tensor '" + tensor.name +
           "', which has shape " + to_string(tensor.shape));
    }
    return offsets.get<Shape>();
  }

 private:
  static constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 62U;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::config, path_.string() + ": its " + kShardingInfo + " " + what);
  }

  const fs::path& path_;
  nlohmann::json info_;
};

class Shards {
 public:
  explicit Shards(Catalog& catalog) : catalog_(catalog) {}

  void add(const InputPath& path) {
    const SafetensorsHeader header = read_header(InputFile(path));
    const ShardOffsets offsets(header, path);
    const std::uint32_t file = catalog_.file(path);
    for (const TensorEntry& entry : header.tensors) {
      StoredTensor& tensor = tensor_of(entry, path);
      Box box{.offsets = offsets.of(entry), .sizes = entry.shape};
      for (std::size_t d = 0; d < box.sizes.size(); ++d) {
        tensor.shape[d] = std::max(tensor.shape[d], box.offsets[d] + box.sizes[d]);
      }
      tensor.pieces.push_back({.box = std::move(box),
                               .file = file,
                               .offset = header.data_begin + entry.begin,
                               .nbytes = entry.end - entry.begin});
    }
  }

  /// Checks that the shards cover all tensors, and adds the tensors to the catalog.
  void finish(const fs::path& folder) {
    for (StoredTensor& tensor : tensors_) {
      const std::string what = folder.string() + ": tensor '" + tensor.name + "'";
      check_shape(tensor.shape, what);
      std::vector<Box> boxes;
      for (const StoredPiece& piece : tensor.pieces) {
        boxes.push_back(piece.box);
      }
      if (const std::string fault = cover_fault(tensor.shape, boxes); !fault.empty()) {
        throw Error(Errc::config, what + ": the shards do not make up the shape " +
                                      to_string(tensor.shape) + ": " + fault);
      }
      std::erase_if(tensor.pieces, [](const auto& piece) { return piece.box.numel() == 0; });
      catalog_.tensors.push_back(std::move(tensor));
    }
  }

 private:
  StoredTensor& tensor_of(const TensorEntry& entry, const fs::path& path) {
    const auto [at, is_new] = by_name_.try_emplace(entry.name, tensors_.size());
    if (is_new) {
      tensors_.push_back({.name = entry.name,
                          .kind = "param",
                          .stored_name = entry.name,
                          .dtype = entry.dtype,
                          .shape = entry.shape,
                          .pieces = {}});
    }
    StoredTensor& tensor = tensors_[at->second];
    if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size()) {
      throw Error(Errc::config, path.string() + ": tensor '" + entry.name + "' is " +
                                    std::string(safetensors_name(entry.dtype)) + " of shape " +
                                    to_string(entry.shape) +
                                    ", which does not match another shard's");
    }
    return tensor;
  }

  Catalog& catalog_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace

void read_hugging_face(const InputPath& folder, Catalog& catalog, Provenance& provenance) {
  Shards shards(catalog);
  const std::vector<std::string> names = shards_in(folder);
  for (const std::string& name : names) {
    shards.add(folder / name);
  }
  shards.finish(folder);
  provenance.format = "safetensors shards of torch DCP";
  provenance.writer = "torch";
  provenance.world_size = static_cast<int>(names.size());
}

}  // namespace acc::checkpoint::dcp
