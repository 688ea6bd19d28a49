// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/safetensors/tensor_set.hpp"

#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/checkpoint/files/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace acc::checkpoint {

namespace {

using WeightMap = std::map<std::string, std::string>;  ///< tensor -> file
using Aliases = std::map<std::string, std::string>;    ///< second name of a tensor -> its name

/// An index of a set of files.
struct Index {
  WeightMap files;
  std::map<std::string, std::string> metadata;
};

constexpr std::uint64_t kMaxIndex = 100'000'000;  // the same limit as for a header

// Returns the only file with that ending, if there is one.
std::optional<InputPath> only_file(const InputPath& folder, const std::string& ending) {
  const auto found =
      folder.names_of([ending](const std::string& name) { return name.ends_with(ending); });
  if (found.size() > 1) {
    throw Unreadable(fmt::format(
        "{}: expected one *{}, found {}: {}, {}{}; give the path of a file", folder.string(),
        ending, found.size(), found[0], found[1], found.size() > 2 ? ", …" : ""));
  }
  return found.empty() ? std::nullopt : std::optional(folder / found.front());
}

// An index names files of its own folder only. A name with a slash could lead out of it.
bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

nlohmann::json parse_index(const InputFile& file) {
  if (file.nbytes() > kMaxIndex) {
    fail(file.path(),
         "expected an index of at most 100 MB, found " + std::to_string(file.nbytes()) + " bytes");
  }
  try {
    return json_from_text<nlohmann::json>(file.text());
  } catch (const nlohmann::json::exception& error) {
    fail(file.path(), "not valid JSON: " + text_of_fault(error));
  }
}

// Values of "metadata" other than strings (total_size) are not needed.
Index read_index(const InputPath& path) {
  const nlohmann::json index = parse_index(InputFile(path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(path, "expected an object 'weight_map' of tensors and their files");
  }
  Index read;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      throw Unreadable(path.string() + ": tensor '" + name +
                       "': expected the name of a .safetensors file of this folder");
    }
    read.files[name] = file.get<std::string>();
  }
  if (index.contains("metadata") && index["metadata"].is_object()) {
    for (const auto& [key, value] : index["metadata"].items()) {
      if (value.is_string()) {
        read.metadata[key] = value.get<std::string>();
      }
    }
  }
  return read;
}

// A tensor is whole in its file, so it has one piece.
void add_file(const InputPath& path, Catalog& catalog, Aliases& metadata) {
  const SafetensorsHeader header = read_header(InputFile(path));
  metadata.insert(header.metadata.begin(), header.metadata.end());
  const std::uint32_t file = catalog.file(path);
  for (const TensorEntry& entry : header.tensors) {
    StoredTensor tensor;
    tensor.name = tensor.stored_name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    StoredPiece piece;
    piece.box = whole(entry.shape);
    piece.file = file;
    piece.offset = header.data_begin + entry.begin;
    piece.nbytes = entry.end - entry.begin;
    tensor.pieces.push_back(std::move(piece));
    catalog.tensors.push_back(std::move(tensor));
  }
}

/// Returns the second names in metadata of files. save_model of safetensors stores tensors that
/// share memory once, and adds an entry {second name: name} for each name that it leaves out.
Aliases aliases_in(const Aliases& metadata, const Catalog& catalog) {
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : catalog.tensors) {
    names.insert(tensor.name);
  }
  Aliases found;
  for (const auto& [key, value] : metadata) {
    if (key != "format" && names.contains(value) && !names.contains(key)) {
      found.emplace(key, value);
    }
  }
  return found;
}

/// Adds the same tensors under their second names.
void add_aliases(const Aliases& aliases, Catalog& catalog) {
  catalog.index();
  std::vector<StoredTensor> second;
  for (const auto& [alias, name] : aliases) {
    StoredTensor& tensor = second.emplace_back(*catalog.find(name, "param"));
    tensor.name = tensor.stored_name = alias;
  }
  std::ranges::move(second, std::back_inserter(catalog.tensors));
}

// Checks that every tensor is in the file that the index names, and that no file has another one.
// An index may list second names too.
void check_against_index(const InputPath& index, const WeightMap& files, const Catalog& catalog,
                         const Aliases& aliases) {
  std::map<std::string_view, const StoredTensor*> found;
  for (const StoredTensor& tensor : catalog.tensors) {
    const InputPath& path = catalog.files[tensor.pieces.front().file];
    const auto listed = files.find(tensor.name);
    if (listed == files.end() || listed->second != path.filename().string()) {
      fail(path, "tensor '" + tensor.name + "' is here; " + index.filename().string() +
                     (listed == files.end() ? " does not list it"
                                            : " says that it is in " + listed->second));
    }
    found.emplace(tensor.name, &tensor);
  }
  for (const auto& [name, file] : files) {
    if (!found.contains(name) && !aliases.contains(name)) {
      fail(index,
           fmt::format("tensor '{}' is listed in {}, which has none of that name", name, file));
    }
  }
}

bool is_tensor_file(const std::string& name) {
  return name.ends_with(".safetensors");
}

Catalog read_set(const InputPath& folder, const InputPath& index) {
  static_cast<void>(folder.names_of(is_tensor_file));
  auto [files, metadata] = read_index(index);
  std::set<std::string> names;
  const InputPath whole_model = folder / index.filename().stem().stem();  // without .index.json
  for (const auto& [tensor, file] : files) {
    if (names.insert(file).second && !(folder / file).exists()) {
      fail(index,
           fmt::format("lists the file {} (with tensor '{}'), which does not exist", file, tensor));
    }
  }
  if (whole_model.exists() && !names.contains(whole_model.filename().string())) {
    fail(index, "lists other files than " + whole_model.filename().string() +
                    ", which is here too; remove what is out of date, or give the path of that "
                    "file");
  }
  Catalog catalog;
  for (const std::string& name : names) {
    add_file(folder / name, catalog, metadata);
  }
  const Aliases aliases = aliases_in(metadata, catalog);
  check_against_index(index, files, catalog, aliases);
  add_aliases(aliases, catalog);
  return catalog;
}

std::uint64_t nbytes_of(const NamedTensor& tensor) {
  return static_cast<std::uint64_t>(numel_of(tensor.shape)) * size_of(tensor.dtype);
}

// Greedy in the order of the list, as huggingface_hub splits: a tensor that does not fit starts a
// new file, and a tensor above the limit gets its own file without closing the current one.
std::vector<std::vector<NamedTensor>> split(std::vector<NamedTensor> tensors,
                                            std::uint64_t max_shard_nbytes) {
  std::vector<std::vector<NamedTensor>> shards;
  std::vector<NamedTensor> current;
  std::uint64_t nbytes = 0;
  for (NamedTensor& tensor : tensors) {
    const std::uint64_t more = nbytes_of(tensor);
    if (max_shard_nbytes != 0 && more > max_shard_nbytes) {
      shards.push_back({std::move(tensor)});
      continue;
    }
    if (max_shard_nbytes != 0 && more > max_shard_nbytes - nbytes) {
      shards.push_back(std::exchange(current, {}));
      nbytes = 0;
    }
    nbytes += more;
    current.push_back(std::move(tensor));
  }
  if (!current.empty() || shards.empty()) {
    shards.push_back(std::move(current));
  }
  return shards;
}

Catalog read_one(const InputPath& path) {
  Catalog catalog;
  Aliases metadata;
  add_file(path, catalog, metadata);
  add_aliases(aliases_in(metadata, catalog), catalog);
  return catalog;
}

/// Refuses the only file of a folder if its name says that it is one of several
/// ("model-00001-of-00002.safetensors").
void refuse_part(const InputPath& file) {
  const std::string stem = file.filename().stem().string();
  const auto place = stem.rfind("-of-");
  const std::string count = place == std::string::npos ? "" : stem.substr(place + 4);
  if (count.size() == 5 && read_number(count).value_or(0) > 1) {
    fail(file, fmt::format("one of {} files, but neither the others nor a *{} are here",
                           *read_number(count), kSafetensorsIndex));
  }
}

std::string format_index(const std::vector<SafetensorsPlan::File>& files) {
  std::uint64_t total = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const auto& file : files) {
    for (const NamedTensor& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
      total += nbytes_of(tensor);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}},
                                {"weight_map", std::move(weight_map)}};
  // A name that is not UTF-8 is refused by lay_out_safetensors. Here it is only replaced.
  return lossy_text_of_json(index, 2) + "\n";
}

}  // namespace

Catalog read_safetensors(const InputPath& path) {
  Catalog catalog;
  if (!path.is_folder()) {
    catalog = read_one(path);
  } else if (const auto index = only_file(path, kSafetensorsIndex)) {
    catalog = read_set(path, *index);
  } else if (const auto file = only_file(path, ".safetensors")) {
    refuse_part(*file);
    catalog = read_one(*file);
  } else {
    fail(path, std::string("expected a .safetensors file or a *") + kSafetensorsIndex +
                   " in this folder, found neither");
  }
  catalog.index();
  return catalog;
}

// Names are assigned after the split, because they contain the number of files.
SafetensorsPlan plan_safetensors(std::vector<NamedTensor> tensors, std::uint64_t max_shard_nbytes,
                                 const std::string& stem) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  auto shards = split(std::move(tensors), max_shard_nbytes);
  SafetensorsPlan plan;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    // The reference writer sorts by dtype, which puts larger elements first and so aligns all
    // tensors. The stable sort keeps the order of names.
    std::ranges::stable_sort(shards[i], std::greater<>(), &NamedTensor::dtype);
    const std::string suffix =
        shards.size() == 1 ? "" : fmt::format("-{:05}-of-{:05}", i + 1, shards.size());
    plan.files.push_back({stem + suffix + ".safetensors", std::move(shards[i])});
  }
  if (plan.files.size() > 1) {
    plan.index = format_index(plan.files);
  }
  return plan;
}

}  // namespace acc::checkpoint
