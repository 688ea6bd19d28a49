// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/dcp/metadata.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "pickle/reader.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

// Parses `.metadata` from an untrusted pickle. The order of the steps: names of all entries, their
// paths, their places, and then each tensor, whose chunks are checked against its shape. torch
// checks the cover only when it saves; a file with a hole would load there and leave old values in
// place.
namespace acc::checkpoint::dcp {

namespace fs = std::filesystem;

namespace {

using pickle::Value;
using Kind = Value::Kind;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFileSystem = "torch.distributed.checkpoint.filesystem";

bool is_path_class(std::string_view module, std::string_view name) {
  return (module == "pathlib" || module == "pathlib._local") &&
         (name == "PosixPath" || name == "PurePosixPath" || name == "WindowsPath" ||
          name == "PureWindowsPath");
}

// Allows the globals of docs/formats/dcp.md. Any name of module torch passes, so that the message
// about an unknown dtype can name its tensor. The length limit bounds the memory for such names.
bool is_metadata_global(std::string_view module, std::string_view name) {
  constexpr std::size_t kLongest = 64;
  if (name.size() > kLongest) {
    return false;
  }
  static constexpr std::string_view kOfClasses[] = {
      "Metadata",         "TensorStorageMetadata", "BytesStorageMetadata",
      "TensorProperties", "ChunkStorageMetadata",  "MetadataIndex",
      "StorageMeta",      "_MEM_FORMAT_ENCODING"};
  if (module == kMetadataModule) {
    return std::ranges::find(kOfClasses, name) != std::end(kOfClasses);
  }
  return (module == kFileSystem && name == "_StorageInfo") || module == "torch" ||
         (module == "torch.serialization" && name == "_get_layout") ||
         (module == "collections" && name == "OrderedDict") || is_path_class(module, name);
}

std::string in_quotes(std::string_view name) {
  return "'" + std::string(name) + "'";
}

// Returns the state that BUILD gave to an object; null if there is none.
const Value* state_of(const Value& object) {
  return object.is(Kind::object) && object.items.size() > 2 ? object.items[2] : nullptr;
}

bool is_dict(const Value& value) {
  return value.is(Kind::dict) || value.is_object_of("collections", "OrderedDict");
}

class Parser {
 public:
  explicit Parser(const std::filesystem::path& path) : path_(path) {}

  // Each entry's chunks are released after use, because the whole structure may take gigabytes.
  Metadata parse(const Value& root) {
    if (!root.is_object_of(kMetadataModule, "Metadata")) {
      fail("", "expected torch.distributed.checkpoint's Metadata, found " + root.describe());
    }
    Metadata metadata;
    read_names(field(root, "state_dict_metadata", Kind::dict, "a dict", ""), metadata);
    read_paths(root.find("planner_data"), metadata);
    read_places(field(root, "storage_data", Kind::dict, "a dict", ""), metadata);
    for (std::size_t i = 0; i < metadata.entries.size(); ++i) {
      Entry& entry = metadata.entries[i];
      const Value& described = *described_[i];
      entry.is_tensor = described.is_object_of(kMetadataModule, "TensorStorageMetadata");
      if (entry.is_tensor) {
        read_tensor(described, stored_[i], entry);
      } else if (!described.is_object_of(kMetadataModule, "BytesStorageMetadata")) {
        fail(in_quotes(entry.name), "expected a tensor or a value, found " + described.describe());
      } else if (stored_[i].value == nullptr) {
        fail(in_quotes(entry.name), "storage_data has no place for it");
      } else {
        entry.value = place(*stored_[i].value, in_quotes(entry.name));
      }
      stored_[i] = {};
    }
    return metadata;
  }

 private:
  /// Entries of storage_data under one name.
  struct Stored {
    std::map<Shape, const Value*> chunks;
    const Value* value = nullptr;
  };

  [[noreturn]] void fail(const std::string& what, const std::string& problem) const {
    throw Error(Errc::config, path_.string() + ": " + (what.empty() ? "" : what + ": ") + problem);
  }
  /// The same for what is not wrong, but cannot be read here.
  [[noreturn]] void refuse(const std::string& what, const std::string& problem) const {
    throw Unreadable(path_.string() + ": " + what + ": " + problem);
  }

  // Returns a field of an object. Throws with the entry's name if the field is missing or of
  // another kind.
  const Value& field(const Value& object, std::string_view key, Kind kind, const char* expected,
                     const std::string& what) const {
    const Value* value = object.find(key);
    if (value == nullptr || !(kind == Kind::dict ? is_dict(*value) : value->is(kind))) {
      fail(what, "expected '" + std::string(key) + "' to be " + expected + ", found " +
                     (value == nullptr ? "nothing" : value->describe()));
    }
    return *value;
  }

  // Reads a torch.Size, or a plain tuple, which older writers used.
  Shape shape_of(const Value& value, const std::string& what) const {
    const Value* numbers = &value;
    if (value.is_object_of("torch", "Size")) {
      const auto arguments = value.items[1]->items;
      numbers = arguments.size() == 1 ? arguments[0] : nullptr;
    }
    if (numbers == nullptr || !(numbers->is(Kind::tuple) || numbers->is(Kind::list))) {
      fail(what, "expected a torch.Size, found " + value.describe());
    }
    Shape shape;
    shape.reserve(numbers->items.size());
    for (const Value* number : numbers->items) {
      if (!number->is(Kind::integer) || number->integer < 0) {
        fail(what, "expected sizes of 0 or more, found " + number->describe());
      }
      shape.push_back(number->integer);
    }
    return shape;
  }

  // TensorProperties is pickled as the tuple (dtype, layout, requires_grad, memory format,
  // pin_memory).
  Dtype dtype_of(const Value& tensor, const std::string& what) const {
    const Value* properties = tensor.find("properties");
    if (properties == nullptr || !properties->is_object_of(kMetadataModule, "TensorProperties") ||
        state_of(*properties) == nullptr || !state_of(*properties)->is(Kind::tuple) ||
        state_of(*properties)->items.size() != 5) {
      fail(what, "expected its properties to be TensorProperties of 5 values");
    }
    const auto values = state_of(*properties)->items;
    if (!values[0]->is(Kind::global) || values[0]->text != "torch") {
      fail(what, "expected a dtype, found " + values[0]->describe());
    }
    const auto dtype = dtype_of_torch(values[0]->name);
    if (!dtype) {
      refuse(what, "unsupported dtype torch." + std::string(values[0]->name));
    }
    const Value& layout = *values[1];
    if (layout.is_object_of("torch.serialization", "_get_layout") &&
        (layout.items[1]->items.size() != 1 ||
         layout.items[1]->items[0]->text != "torch.strided")) {
      refuse(what, "only strided tensors can be read, found another layout");
    }
    return *dtype;
  }

  std::uint64_t count(const Value& object, std::string_view key, const std::string& what) const {
    const Value& value = field(object, key, Kind::integer, "a number", what);
    if (value.integer < 0) {
      fail(what, "'" + std::string(key) + "' is " + std::to_string(value.integer));
    }
    return static_cast<std::uint64_t>(value.integer);
  }

  // Reads a string, or a pathlib path, which is pickled as its parts. The path must stay in the
  // folder.
  std::string relative_path(const Value& info, const std::string& what) const {
    const Value* value = info.find("relative_path");
    fs::path path;
    if (value != nullptr && value->is(Kind::text)) {
      path = value->text;
    } else if (value != nullptr && value->is(Kind::object) && value->items[0]->is(Kind::global) &&
               is_path_class(value->items[0]->text, value->items[0]->name)) {
      for (const Value* part : value->items[1]->items) {
        path /= part->text;
      }
    } else {
      fail(what, "expected 'relative_path' to be text, found " +
                     (value == nullptr ? "nothing" : value->describe()));
    }
    const bool leaves = std::ranges::any_of(path, [](const auto& part) { return part == ".."; });
    std::string text = path.string();
    if (!path.has_filename() || path.is_absolute() || leaves || text.find('\0') != text.npos) {
      fail(what, "its file '" + text + "' is not inside the checkpoint's folder");
    }
    return text;
  }

  // A transform (compression, encryption) changes the bytes of an entry, which this reader cannot
  // undo.
  Place place(const Value& info, const std::string& what) const {
    if (!info.is_object_of(kFileSystem, "_StorageInfo")) {
      fail(what, "expected its place to be a _StorageInfo, found " + info.describe());
    }
    const Value* transforms = info.find("transform_descriptors");
    if (transforms != nullptr && !transforms->is(Kind::none)) {
      std::string names;
      for (const Value* name : transforms->items) {
        names += (names.empty() ? "" : ", ") + std::string(name->text);
      }
      refuse(what, "is stored through a transform (transform_descriptors: " + names +
                       "), as with compression, which cannot be read; save without one");
    }
    Place place{.file = relative_path(info, what),
                .offset = count(info, "offset", what),
                .nbytes = count(info, "length", what)};
    return place;
  }

  Path path_of(const Value& value, const std::string& what) const {
    if (!value.is(Kind::tuple) && !value.is(Kind::list)) {
      fail(what, "expected its path in planner_data to be a tuple, found " + value.describe());
    }
    constexpr std::size_t kMaxKeys = 256;
    if (value.items.size() > kMaxKeys) {
      fail(what, "its path in planner_data has " + std::to_string(value.items.size()) + " keys");
    }
    Path path;
    for (const Value* part : value.items) {
      if (part->is(Kind::text)) {
        path.emplace_back(std::string(part->text));
      } else if (part->is(Kind::integer)) {
        path.emplace_back(part->integer);
      } else {
        fail(what, "its path in planner_data holds " + part->describe());
      }
    }
    return path;
  }

  void read_names(const Value& names, Metadata& metadata) {
    const auto pairs = names.pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (!pairs[i]->is(Kind::text)) {
        fail("state_dict_metadata", "expected names as keys, found " + pairs[i]->describe());
      }
      // A key that occurs twice has its last value, as in Python.
      const auto [at, is_new] = by_name_.emplace(pairs[i]->text, metadata.entries.size());
      if (is_new) {
        metadata.entries.emplace_back().name = pairs[i]->text;
        described_.push_back(pairs[i + 1]);
      }
      described_[at->second] = pairs[i + 1];
    }
  }

  // planner_data may be missing, or None. Names without a path are split at dots later. A name is
  // its path, joined by dots, in all that torch writes. Another one has been damaged.
  void read_paths(const Value* planner_data, Metadata& metadata) const {
    if (planner_data == nullptr || planner_data->is(Kind::none)) {
      return;
    }
    if (!is_dict(*planner_data)) {
      fail("", "expected planner_data to be a dict, found " + planner_data->describe());
    }
    const auto pairs = planner_data->pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const auto found = pairs[i]->is(Kind::text) ? by_name_.find(pairs[i]->text) : by_name_.end();
      if (found != by_name_.end()) {
        Entry& entry = metadata.entries[found->second];
        entry.path = path_of(*pairs[i + 1], in_quotes(entry.name));
        const std::string joined = joined_by_dots(entry.path);
        if (!entry.path.empty() && joined != entry.name) {
          fail(in_quotes(entry.name), "its path in planner_data is that of " + in_quotes(joined));
        }
      }
    }
  }

  // Places of names that have no description are ignored: they are leftovers of an older save.
  void read_places(const Value& storage, const Metadata& metadata) {
    stored_.resize(metadata.entries.size());
    const auto pairs = storage.pairs();
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (!pairs[i]->is_object_of(kMetadataModule, "MetadataIndex")) {
        fail("storage_data", "expected MetadataIndex as keys, found " + pairs[i]->describe());
      }
      const Value& name = field(*pairs[i], "fqn", Kind::text, "text", "storage_data");
      const auto found = by_name_.find(name.text);
      if (found == by_name_.end()) {
        continue;
      }
      const Value* offset = pairs[i]->find("offset");
      Stored& stored = stored_[found->second];
      if (offset == nullptr || offset->is(Kind::none)) {
        stored.value = pairs[i + 1];
      } else {
        stored.chunks.insert_or_assign(shape_of(*offset, "storage_data of " + in_quotes(name.text)),
                                       pairs[i + 1]);
      }
    }
  }

  // A chunk is found by its offsets in storage_data. The chunks must cover the tensor exactly once.
  void read_tensor(const Value& value, const Stored& stored, Entry& entry) const {
    const std::string what = "tensor " + in_quotes(entry.name);
    const Value* size = value.find("size");
    if (size == nullptr) {
      fail(what, "expected 'size', found nothing");
    }
    entry.dtype = dtype_of(value, what);
    entry.shape = shape_of(*size, what);
    check_shape(entry.shape, path_.string() + ": " + what);
    std::vector<Box> boxes;
    for (const Value* item : field(value, "chunks", Kind::list, "a list", what).items) {
      const Value* offsets = item->find("offsets");
      const Value* sizes = item->find("sizes");
      if (!item->is_object_of(kMetadataModule, "ChunkStorageMetadata") || offsets == nullptr ||
          sizes == nullptr) {
        fail(what, "expected chunks with offsets and sizes, found " + item->describe());
      }
      Box box{.offsets = shape_of(*offsets, what), .sizes = shape_of(*sizes, what)};
      if (!lies_in(box, entry.shape)) {
        fail(what, "a chunk with offsets " + to_string(box.offsets) + " and sizes " +
                       to_string(box.sizes) + " lies outside of the shape " +
                       to_string(entry.shape));
      }
      const auto found = stored.chunks.find(box.offsets);
      if (found == stored.chunks.end()) {
        fail(what, "storage_data has no place for chunk " + to_string(box));
      }
      boxes.push_back(box);
      entry.chunks.push_back({.box = std::move(box), .place = place(*found->second, what)});
    }
    if (const std::string fault = cover_fault(entry.shape, boxes); !fault.empty()) {
      fail(what, "its chunks do not make up the shape " + to_string(entry.shape) + ": " + fault);
    }
  }

  const std::filesystem::path& path_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::vector<const Value*> described_;
  std::vector<Stored> stored_;
};

}  // namespace

Metadata parse_metadata(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const pickle::Values parsed = pickle::read(bytes, path.string(), is_metadata_global);
  return Parser(path).parse(parsed.root());
}

}  // namespace acc::checkpoint::dcp
