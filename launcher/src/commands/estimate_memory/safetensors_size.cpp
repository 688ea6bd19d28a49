// SPDX-License-Identifier: Apache-2.0
// Reads the tensor shapes from safetensors headers (docs/formats/safetensors.md), and groups the
// tensors into parts of a model by their names.
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/json_form.hpp"
#include "commands/estimate_memory/model_size.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMaxDepth = 3;                       // header, tensor, list of numbers
constexpr std::size_t kMostShown = 200;            // bytes of a value in a message
constexpr std::uint64_t kMaxHeader = 100'000'000;  // limit of the safetensors library, in bytes

[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw Error(Errc::config, path.string() + ": " + what);
}

std::ifstream open(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // reading a FIFO may block forever
    fail(path, "not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(Errc::not_found, "cannot read " + path.string() + ": " + std::strerror(errno));
  }
  return file;
}

/// Reads the header: its length as a little-endian 64-bit integer, then JSON.
json read_header(const fs::path& path) {
  std::ifstream file = open(path);
  std::array<unsigned char, 8> bytes{};
  file.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    length = length * 256 + bytes[i];
  }
  if (!file || length > kMaxHeader) {
    fail(path, "not a safetensors file: its first 8 bytes are not a valid header length");
  }
  std::string text(length, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(length))) {
    fail(path, "truncated: its header should have " + std::to_string(length) + " bytes");
  }
  const JsonForm form = json_form(text);
  if (form.depth > kMaxDepth) {
    fail(path, "the header is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (form.twice) {
    fail(path, "tensor '" + *form.twice + "' is listed twice");
  }
  return json_from_text<json>(text);
}

/// Number of elements and shape of each tensor, by name.
struct Tensor {
  std::int64_t numel = 1;
  std::vector<std::int64_t> shape;
};
using Tensors = std::map<std::string, Tensor>;

void add_tensors(const fs::path& path, Tensors& tensors) {
  const json header = read_header(path);
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    const json shape = tensor.is_object() ? tensor.value("shape", json()) : json();
    if (!shape.is_array() || !std::ranges::all_of(shape, &json::is_number_unsigned)) {
      fail(path, "tensor '" + name + "': expected a list of numbers as shape, found " +
                     text_of_json(shape).substr(0, kMostShown));
    }
    Tensor found{.shape = {}};
    for (const json& extent : shape) {
      const auto count = extent.get<std::uint64_t>();
      found.shape.push_back(
          static_cast<std::int64_t>(std::min(count, static_cast<std::uint64_t>(kMostNumel) + 1)));
      found.numel = counted_product(found.numel, found.shape.back());
    }
    tensors[name] = std::move(found);
  }
}

void add_index(const fs::path& path, Tensors& tensors) {
  std::ifstream file = open(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::set<std::string> names;
  const json index = json_from_text<json>(text);
  for (const auto& [tensor, name] : index.at("weight_map").items()) {
    names.insert(name.get<std::string>());
  }
  for (const std::string& name : names) {
    add_tensors(path.parent_path() / name, tensors);
  }
}

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the part that a tensor belongs to. A name that contains a number belongs to a repeated
/// layer, and is cut after the first number: `model.layers.3` for `model.layers.3.mlp.weight`. Any
/// other tensor belongs to its module: `model.norm` for `model.norm.weight`.
ModelPart part_of(const std::string& tensor) {
  for (std::size_t begin = 0; begin < tensor.size();) {
    const std::size_t end = std::min(tensor.find('.', begin), tensor.size());
    if (is_number(std::string_view(tensor).substr(begin, end - begin))) {
      return {tensor.substr(0, end), 0, 1, true};
    }
    begin = end + 1;
  }
  return {tensor.substr(0, tensor.rfind('.')), 0, 1, false};
}

}  // namespace

ModelSize size_from_safetensors(const fs::path& path) {
  Tensors tensors;
  try {
    path.extension() == ".json" ? add_index(path, tensors) : add_tensors(path, tensors);
  } catch (const json::exception& error) {
    fail(path, "not a valid safetensors header or index: " + text_of_fault(error));
  }
  std::map<std::string, ModelPart> parts;
  for (const auto& [name, tensor] : tensors) {
    const ModelPart of = part_of(name);
    ModelPart& part = parts.emplace(of.name, of).first->second;
    part.numel = counted_sum(part.numel, tensor.numel);
    if (tensor.shape.size() == 2) {
      part.matrices.push_back({tensor.shape[0], tensor.shape[1]});
    }
  }
  if (parts.empty()) {
    fail(path, "the file contains no tensor");
  }
  ModelSize size{.name = path.string(), .parts = {}};
  for (auto& [name, part] : parts) {
    size.parts.push_back(std::move(part));
  }
  return size;
}

}  // namespace acc::launcher::commands
