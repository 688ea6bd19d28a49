// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/safetensors/header.hpp"

#include "acc/base/json.hpp"
#include "acc/base/json_form.hpp"
#include "acc/checkpoint/files/errors.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

// The header comes from an untrusted file. Its length is limited as in the reference reader, the
// JSON must have the exact form of a header, and the byte ranges must tile the data section. See
// docs/formats/safetensors.md.
namespace acc::checkpoint {
namespace {

constexpr std::uint64_t kLengthWord = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // limit of the reference implementation
constexpr int kMaxDepth = 3;                       // object, tensor, list of numbers
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // nlohmann::json would skip it

// Returns the beginning of a value for a message.
std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kMaxShown = 200;
  const std::string text = text_of_json(value);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "…";
}

std::uint64_t header_length(std::span<const std::byte> bytes, std::uint64_t file_nbytes,
                            const std::filesystem::path& path) {
  if (file_nbytes < kLengthWord) {
    fail(path,
         "not a safetensors file: expected at least 8 bytes, found " + std::to_string(file_nbytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthWord);
  if (length > kMaxHeader) {
    fail(path, "not a safetensors file: its first 8 bytes give a header length of " +
                   std::to_string(length) + " bytes, expected at most 100 MB");
  }
  if (length > file_nbytes - kLengthWord) {
    fail(path, "truncated: the header has " + std::to_string(length) + " bytes, found " +
                   std::to_string(file_nbytes - kLengthWord));
  }
  return length;
}

// Parses the JSON and refuses duplicate names, which the format forbids. nlohmann::json alone would
// silently keep the last of two equal keys.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path) {
  const JsonForm form = json_form(text);
  if (form.depth > kMaxDepth) {  // `shown` would recurse as deep as the file says
    fail(path, "the header is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  if (form.twice) {
    fail(path, "tensor '" + *form.twice + "' is listed twice");
  }
  try {
    auto parsed = json_from_text<nlohmann::json>(text);
    if (!parsed.is_object() || text.starts_with(kByteOrderMark)) {
      fail(path, "the header is not a JSON object");
    }
    return parsed;
  } catch (const nlohmann::json::exception& error) {
    fail(path, "the header is not valid JSON: " + text_of_fault(error));
  }
}

// Returns a list of numbers that are not negative.
std::vector<std::uint64_t> numbers(const nlohmann::json& entry, const char* key,
                                   const std::string& name, const std::filesystem::path& path) {
  std::vector<std::uint64_t> values;
  const auto found = entry.find(key);
  const bool is_list = found != entry.end() && found->is_array();
  if (!is_list || !std::all_of(found->begin(), found->end(),
                               [](const auto& value) { return value.is_number_unsigned(); })) {
    fail_tensor(path, name,
                std::string("expected '") + key + "' to be a list of numbers, found " +
                    (found == entry.end() ? "nothing" : shown(*found)));
  }
  found->get_to(values);
  return values;
}

TensorEntry parse_entry(const std::string& name, const nlohmann::json& entry,
                        const std::filesystem::path& path) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) {
    fail_tensor(path, name,
                "expected an object with dtype, shape and data_offsets, found " + shown(entry));
  }
  const auto dtype = dtype_of_safetensors(entry["dtype"].get<std::string>());
  if (!dtype) {
    throw Unreadable(path.string() + ": tensor '" + name + "': dtype " + shown(entry["dtype"]) +
                     " is not supported");
  }
  TensorEntry tensor{.name = name, .dtype = *dtype, .shape = {}};
  for (const std::uint64_t extent : numbers(entry, "shape", name, path)) {
    // A size beyond int64 is clamped; check_shape refuses it as too large.
    tensor.shape.push_back(static_cast<std::int64_t>(
        std::min(extent, std::uint64_t{std::numeric_limits<std::int64_t>::max()})));
  }
  if (const std::int64_t values = values_per_element(*dtype); values != 1) {
    if (tensor.shape.empty() || tensor.shape.back() % values != 0) {
      throw Unreadable(path.string() + ": tensor '" + name + "': rows of shape " +
                       to_string(tensor.shape) + " of " + std::string(safetensors_name(*dtype)) +
                       " do not fill whole bytes");
    }
    tensor.shape.back() /= values;
  }
  check_shape(tensor.shape, path.string() + ": tensor '" + name + "'");
  std::uint64_t nbytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.numel()), size_of(*dtype),
                             &nbytes)) {
    fail_tensor(path, name, "shape " + to_string(tensor.shape) + " has more bytes than a file");
  }
  const auto offsets = numbers(entry, "data_offsets", name, path);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    fail_tensor(path, name,
                "data_offsets must be [begin, end], found " + shown(entry["data_offsets"]));
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.end - tensor.begin != nbytes) {
    fail_tensor(path, name,
                "shape " + to_string(tensor.shape) + " of " +
                    std::string(safetensors_name(tensor.dtype)) + " needs " +
                    std::to_string(nbytes) + " bytes, its data_offsets hold " +
                    std::to_string(tensor.end - tensor.begin));
  }
  return tensor;
}

// Checks that the tensors follow each other without holes and overlaps and fill the data section.
void check_layout(const std::vector<TensorEntry>& tensors, std::uint64_t data_size,
                  const std::filesystem::path& path) {
  std::uint64_t position = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != position) {
      fail_tensor(path, tensor.name,
                  std::string(tensor.begin < position ? "overlaps" : "leaves a hole after") +
                      " the tensor before it: begins at byte " + std::to_string(tensor.begin) +
                      ", expected " + std::to_string(position));
    }
    position = tensor.end;
    if (position > data_size) {
      fail_tensor(path, tensor.name,
                  "truncated file: the tensor ends at byte " + std::to_string(position) +
                      " of the data, the file has " + std::to_string(data_size));
    }
  }
  if (position != data_size) {
    fail(path, "the tensors fill " + std::to_string(position) + " bytes, the file has " +
                   std::to_string(data_size) + " after its header");
  }
}

}  // namespace

SafetensorsHeader parse_header(std::span<const std::byte> bytes, std::uint64_t file_nbytes,
                               const std::filesystem::path& path) {
  const std::uint64_t length = header_length(bytes, file_nbytes, path);
  const auto json =
      parse_json({reinterpret_cast<const char*>(bytes.data()) + kLengthWord, length}, path);
  SafetensorsHeader header;
  header.data_begin = kLengthWord + length;
  for (const auto& [name, entry] : json.items()) {
    if (name != kMetadataKey) {
      header.tensors.push_back(parse_entry(name, entry, path));
      continue;
    }
    if (entry.is_null()) {
      continue;
    }
    try {
      entry.get_to(header.metadata);
    } catch (const nlohmann::json::exception&) {
      fail(path, "__metadata__ must map strings to strings, found " + shown(entry));
    }
  }
  // Sorting by `end` second puts an empty tensor before the one that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_layout(header.tensors, file_nbytes - header.data_begin, path);
  return header;
}

SafetensorsHeader read_header(const InputFile& file) {
  std::vector<std::byte> bytes(std::min(file.nbytes(), kLengthWord));
  file.read(0, bytes);
  bytes.resize(kLengthWord + header_length(bytes, file.nbytes(), file.path()));
  file.read(0, bytes);
  return parse_header(bytes, file.nbytes(), file.path());
}

namespace {

std::string quoted(const std::string& name) {
  if (name == kMetadataKey) {
    throw Error(Errc::not_supported, "cannot write tensor '" + name +
                                         "' to a safetensors file, whose header has its metadata "
                                         "under this name");
  }
  try {
    return text_of_json(nlohmann::json(name));
  } catch (const nlohmann::json::exception&) {
    throw Error(Errc::not_supported,
                "cannot write tensor '" + name + "' to a safetensors file: its name is not UTF-8");
  }
}

std::string_view written_dtype(const NamedTensor& tensor) {
  const std::string_view name = safetensors_name(tensor.dtype);
  if (name.empty()) {
    throw Error(Errc::not_supported,
                "cannot write tensor '" + tensor.name + "' of " +
                    std::string(torch_name(tensor.dtype)) +
                    " to a safetensors file, whose format has no such dtype; write a "
                    ".bin file (--unsafe_serialization, or convert --to bin)");
  }
  return name;
}

Shape written_shape(const NamedTensor& tensor) {
  Shape shape = tensor.shape;
  if (!shape.empty()) {
    shape.back() *= values_per_element(tensor.dtype);
  }
  return shape;
}

}  // namespace

SafetensorsLayout lay_out_safetensors(std::span<const NamedTensor> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  // The text is built by hand: an ordered JSON object would compare each new name with all others.
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      text += (text.back() == '{' ? "" : ",") + quoted(key) + ":" + quoted(value);
    }
    text += "}";
  }
  SafetensorsLayout layout;
  std::set<std::string_view> names;
  std::uint64_t position = 0;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(Errc::internal,
                  "cannot write tensor '" + tensor.name + "': its name occurs twice");
    }
    layout.offsets.push_back(position);
    const std::uint64_t end =
        position + static_cast<std::uint64_t>(numel_of(tensor.shape)) * size_of(tensor.dtype);
    const nlohmann::ordered_json entry = {{"dtype", written_dtype(tensor)},
                                          {"shape", written_shape(tensor)},
                                          {"data_offsets", {position, end}}};
    text += (text.size() > 1 ? "," : "") + quoted(tensor.name) + ":" + text_of_json(entry);
    position = end;
  }
  text += "}";
  // Padding with spaces, which JSON ignores, aligns the data section to 8 bytes.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  layout.header.resize(kLengthWord);
  std::memcpy(layout.header.data(), &length, kLengthWord);
  layout.header += text;
  layout.nbytes = layout.header.size() + position;
  for (std::uint64_t& offset : layout.offsets) {
    offset += layout.header.size();
  }
  return layout;
}

}  // namespace acc::checkpoint
