// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/dcp/metadata.hpp"
#include "acc/checkpoint/pickle/writer.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

// Writes `.metadata` as a pickle of protocol 2 in one pass over the chunks. The pickle is written
// out every 512 chunks, so that memory does not grow with the world. Names of classes and keys
// repeat in every chunk. They are stored in the memo once, as its first entries, so that each later
// use takes two bytes. docs/formats/dcp.md describes the objects.
namespace acc::checkpoint::dcp {

namespace {

// A class or key that repeats per chunk or tensor. It is written out once and then recalled from
// the memo, in two bytes.
enum class Word : std::uint8_t {
  chunk_class,
  index_class,
  place_class,
  size_class,
  tensor_class,
  bytes_class,
  properties_class,
  offsets,
  sizes,
  fqn,
  offset,
  relative_path,
  length,
  properties,
  size,
  chunks,
  count
};

struct Spelling {
  const char* module;  // null: a string
  const char* name;
};

constexpr const char* kModuleOfClasses = "torch.distributed.checkpoint.metadata";

constexpr std::array<Spelling, static_cast<std::size_t>(Word::count)> kSpellings = {{
    {kModuleOfClasses, "ChunkStorageMetadata"},
    {kModuleOfClasses, "MetadataIndex"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch", "Size"},
    {kModuleOfClasses, "TensorStorageMetadata"},
    {kModuleOfClasses, "BytesStorageMetadata"},
    {kModuleOfClasses, "TensorProperties"},
    {nullptr, "offsets"},
    {nullptr, "sizes"},
    {nullptr, "fqn"},
    {nullptr, "offset"},
    {nullptr, "relative_path"},
    {nullptr, "length"},
    {nullptr, "properties"},
    {nullptr, "size"},
    {nullptr, "chunks"},
}};

class Formatter {
 public:
  Formatter(const std::vector<Entry>& entries, const VisitBoxes& boxes, const VisitChunks& chunks,
            const std::function<void(std::string_view)>& write)
      : entries_(entries), boxes_(boxes), chunks_(chunks), write_(write) {}

  void format(const std::string& save_id);

 private:
  /// Recalls a word from the memo, or writes it and stores it there. `file` does the same for the
  /// name of a file.
  void word(Word word);
  void object(Word of_class);
  void size(const Shape& shape);
  void file(const std::string& name);
  void write_out() { write_(out_.take()); }

  void properties(Dtype dtype);
  void tensor(std::size_t entry);
  void describe_entries();
  void paths();
  void place(const Place& place);
  void places_of(std::size_t entry);
  void storage_meta(const std::string& save_id);

  const std::vector<Entry>& entries_;
  const VisitBoxes& boxes_;
  const VisitChunks& chunks_;
  const std::function<void(std::string_view)>& write_;
  pickle::Writer out_;
  std::array<std::optional<std::uint32_t>, kSpellings.size()> words_;
  std::vector<std::uint32_t> names_;  // memo ids of the entries' names
  std::unordered_map<std::string, std::uint32_t> files_;
  std::size_t since_written_ = 0;
};

void Formatter::word(Word word) {
  const auto at = static_cast<std::size_t>(word);
  if (words_[at]) {
    out_.recall(*words_[at]);
    return;
  }
  const Spelling& spelling = kSpellings[at];
  if (spelling.module != nullptr) {
    out_.global(spelling.module, spelling.name);
  } else {
    out_.text(spelling.name);
  }
  words_[at] = out_.remember();
}

void Formatter::object(Word of_class) {
  word(of_class);
  out_.begin_tuple().end_tuple().new_object();
}

void Formatter::size(const Shape& shape) {
  word(Word::size_class);
  out_.begin_tuple().begin_tuple();
  for (const std::int64_t extent : shape) {
    out_.integer(extent);
  }
  out_.end_tuple().end_tuple().reduce();
}

void Formatter::file(const std::string& name) {
  if (const auto found = files_.find(name); found != files_.end()) {
    out_.recall(found->second);
    return;
  }
  out_.text(name);
  files_.emplace(name, out_.remember());
}

// Properties of a dense CPU tensor, as torch saves them. Readers use only the dtype.
void Formatter::properties(Dtype dtype) {
  object(Word::properties_class);
  out_.begin_tuple().global("torch", torch_name(dtype));
  out_.global("torch.serialization", "_get_layout").begin_tuple().text("torch.strided").end_tuple();
  out_.reduce().boolean(false);
  out_.global(kModuleOfClasses, "_MEM_FORMAT_ENCODING")
      .begin_tuple()
      .integer(0)
      .end_tuple()
      .reduce();
  out_.boolean(false).end_tuple().build();
}

void Formatter::tensor(std::size_t entry) {
  object(Word::tensor_class);
  out_.begin_dict();
  word(Word::properties);
  properties(entries_[entry].dtype);
  word(Word::size);
  size(entries_[entry].shape);
  word(Word::chunks);
  out_.begin_list();
  boxes_(entry, [&](const Box& box) {
    object(Word::chunk_class);
    out_.begin_dict();
    word(Word::offsets);
    size(box.offsets);
    word(Word::sizes);
    size(box.sizes);
    out_.end_dict().build();
    if (++since_written_ % 512 == 0) {
      write_out();
    }
  });
  out_.end_list().end_dict().build();
}

void Formatter::describe_entries() {
  out_.begin_dict();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    out_.text(entries_[i].name);
    names_.push_back(out_.remember());
    if (entries_[i].is_tensor) {
      tensor(i);
    } else {
      object(Word::bytes_class);
    }
    write_out();
  }
  out_.end_dict();
}

void Formatter::paths() {
  out_.begin_dict();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    out_.recall(names_[i]).begin_tuple();
    for (const auto& part : entries_[i].path) {
      if (const auto* key = std::get_if<std::string>(&part)) {
        out_.text(*key);
      } else {
        out_.integer(std::get<std::int64_t>(part));
      }
    }
    out_.end_tuple();
  }
  out_.end_dict();
}

// Writes a _StorageInfo: file, offset and length of an archive.
void Formatter::place(const Place& place) {
  object(Word::place_class);
  out_.begin_dict();
  word(Word::relative_path);
  file(place.file);
  word(Word::offset);
  out_.integer(static_cast<std::int64_t>(place.offset));
  word(Word::length);
  out_.integer(static_cast<std::int64_t>(place.nbytes));
  out_.end_dict().build();
}

// Writes the storage_data of an entry: MetadataIndex -> _StorageInfo. The field MetadataIndex.index
// is left out, because it is only a hint and does not take part in comparisons.
void Formatter::places_of(std::size_t entry) {
  const auto index = [&](const Shape* offset) {
    object(Word::index_class);
    out_.begin_dict();
    word(Word::fqn);
    out_.recall(names_[entry]);
    if (offset != nullptr) {
      word(Word::offset);
      size(*offset);
    }
    out_.end_dict().build();
  };
  if (!entries_[entry].is_tensor) {
    index(nullptr);
    place(entries_[entry].value);
    return;
  }
  chunks_(entry, [&](const Chunk& chunk) {
    index(&chunk.box.offsets);
    place(chunk.place);
    if (++since_written_ % 512 == 0) {
      write_out();
    }
  });
}

void Formatter::storage_meta(const std::string& save_id) {
  out_.global(kModuleOfClasses, "StorageMeta").begin_tuple().end_tuple().new_object().begin_dict();
  out_.text("checkpoint_id").none().text("save_id");
  if (save_id.empty()) {
    out_.none();
  } else {
    out_.text(save_id);
  }
  out_.text("load_id").none().text("modules").begin_list().end_list().end_dict().build();
}

void Formatter::format(const std::string& save_id) {
  out_.global(kModuleOfClasses, "Metadata").begin_tuple().end_tuple().new_object().begin_dict();
  // Stores all words in the memo first, so that they get ids below 256, which take two bytes
  // instead of five. The words need a place in the pickle: a first value of "version", which the
  // second one at the end replaces.
  out_.text("version").begin_tuple();
  for (std::size_t i = 0; i < kSpellings.size(); ++i) {
    word(static_cast<Word>(i));
  }
  out_.end_tuple();
  out_.text("state_dict_metadata");
  describe_entries();
  const bool has_paths =
      std::ranges::any_of(entries_, [](const auto& e) { return !e.path.empty(); });
  out_.text("planner_data");
  if (has_paths) {
    paths();
  } else {
    out_.none();
  }
  write_out();
  out_.text("storage_data").begin_dict();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    places_of(i);
    write_out();
  }
  out_.end_dict().text("storage_meta");
  storage_meta(save_id);
  out_.text("version").text("1.0.0").end_dict().build();
  write_(out_.finish());
}

}  // namespace

void format_metadata(const std::vector<Entry>& entries, const VisitBoxes& boxes,
                     const VisitChunks& chunks, const std::function<void(std::string_view)>& write,
                     const std::string& save_id) {
  Formatter(entries, boxes, chunks, write).format(save_id);
}

}  // namespace acc::checkpoint::dcp
