#include "checkpoint/sharded_checkpoint.hpp"

#include "checkpoint/manifest.hpp"

#include <set>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

// What the rank files of a finished save hold, from their headers.
PieceTable collect_pieces(const fs::path& folder, int world_size) {
  PieceTable table;
  for (int rank = 0; rank < world_size; ++rank) {
    const fs::path path = folder / rank_file_name(rank);
    if (!fs::exists(path)) {
      throw Error(Errc::config,
                  "rank " + std::to_string(rank) + " wrote no file " + path.string() +
                      " that rank 0 can see: all machines must share the checkpoint's folder",
                  rank);
    }
    const SafetensorsFile file(path);
    for (const TensorEntry& entry : file.tensors()) {
      const PieceName name = parse_piece_name(entry.name, path);
      table.add(name.tensor, name.kind, {name.offset, entry.numel(), rank});
    }
  }
  return table;
}

// A piece that the manifest does not list would be lost on loading.
void check_listed(const OldManifest& manifest, const PieceTable& table, const fs::path& path) {
  std::set<PieceTable::Key> listed;
  for (const CheckpointTensor& tensor : manifest.tensors) {
    for (const std::string& kind : tensor.kinds) {
      listed.emplace(tensor.name, kind);
    }
  }
  for (const auto& [key, pieces] : table.all()) {
    if (!listed.contains(key)) {
      throw Error(Errc::internal, path.string() + ": '" + key.first + "', " + key.second +
                                      " was written but is not in the list of tensors");
    }
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& folder, std::uint32_t id)
    : folder_(folder, is_checkpoint_file, id) {}

void CheckpointWriter::begin() {
  folder_.abandon();  // of a killed save with the same id
  folder_.begin();
  folder_.make();
}

void CheckpointWriter::write_rank_file(int rank, std::span<const Piece> pieces) {
  if (!fs::is_directory(folder_.temporary())) {
    throw Error(Errc::config,
                "rank " + std::to_string(rank) + " does not see the folder " +
                    folder_.temporary().string() +
                    " that rank 0 made: all machines must share the checkpoint's folder",
                rank);
  }
  std::vector<NamedTensor> specs;
  for (const Piece& piece : pieces) {
    if (!piece.data.empty()) {  // its name would be that of the piece that follows
      specs.push_back({piece_name(piece.tensor, piece.kind, piece.offset),
                       Dtype::f32,
                       {std::ssize(piece.data)}});
    }
  }
  SafetensorsWriter file(folder_.temporary() / rank_file_name(rank), std::move(specs));
  for (const Piece& piece : pieces) {
    file.append(piece.data);
  }
  file.commit();
}

void CheckpointWriter::commit(const OldManifest& manifest) {
  const fs::path& temporary = folder_.temporary();
  const PieceTable table = collect_pieces(temporary, manifest.world_size);
  check_listed(manifest, table, temporary);
  check_cover(manifest, table, temporary);
  AtomicFile metadata(temporary / kMetadataFile);
  metadata.write(format_manifest(manifest, table));
  metadata.commit();
  folder_.commit();
}

ShardedCheckpoint::ShardedCheckpoint(const fs::path& folder)
    : folder_(AtomicFolder(folder, is_checkpoint_file).current()) {
  const fs::path path = folder_ / kMetadataFile;
  if (!fs::exists(path)) {
    throw Error(Errc::config,
                "no checkpoint in " + folder_.string() + ": it has no " + kMetadataFile);
  }
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  manifest_ = parse_manifest(text, path, table_);
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) {
    by_name_[manifest_.tensors[i].name] = i;
  }
}

const CheckpointTensor* ShardedCheckpoint::find(const std::string& tensor) const {
  const auto alias = manifest_.aliases.find(tensor);
  const auto found = by_name_.find(alias == manifest_.aliases.end() ? tensor : alias->second);
  return found == by_name_.end() ? nullptr : &manifest_.tensors[found->second];
}

const CheckpointTensor& ShardedCheckpoint::at(const std::string& tensor) const {
  const CheckpointTensor* found = find(tensor);
  if (found == nullptr) {
    throw Error(Errc::config, "checkpoint " + folder_.string() + " has no tensor '" + tensor +
                                  "' among its " + std::to_string(manifest_.tensors.size()));
  }
  return *found;
}

bool ShardedCheckpoint::contains(const std::string& tensor, const std::string& kind) const {
  const CheckpointTensor* found = find(tensor);
  return found != nullptr && table_.all().contains({found->name, kind});
}

void ShardedCheckpoint::expect(const std::string& tensor, const Shape& shape) const {
  const CheckpointTensor& found = at(tensor);
  if (found.shape != shape) {
    throw Error(Errc::config, "checkpoint " + folder_.string() + ", tensor '" + tensor +
                                  "': expected shape " + to_string(shape) + ", found " +
                                  to_string(found.shape));
  }
}

const SafetensorsFile& ShardedCheckpoint::file(int index) {
  auto& slot = files_[index];
  if (!slot) {
    slot = std::make_unique<SafetensorsFile>(folder_ / rank_file_name(index));
  }
  return *slot;
}

void ShardedCheckpoint::read(const std::string& tensor, const std::string& kind,
                             std::int64_t offset, std::span<float> out) {
  const CheckpointTensor& found = at(tensor);
  if (!contains(tensor, kind)) {
    throw Error(Errc::config, "checkpoint " + folder_.string() + " has no " + kind +
                                  " for tensor '" + tensor + "'");
  }
  if (offset < 0 || std::ssize(out) > numel_of(found.shape) - offset) {
    throw Error(Errc::internal, "checkpoint " + folder_.string() + ", tensor '" + tensor +
                                    "': no elements " + std::to_string(offset) + " to " +
                                    std::to_string(offset + std::ssize(out)));
  }
  for (const Overlap& part : table_.overlaps(found.name, kind, offset, std::ssize(out))) {
    const SafetensorsFile& source = file(part.piece.file);
    const std::string name = piece_name(found.name, kind, part.piece.offset);
    if (source.at(name).numel() != part.piece.numel) {
      throw Error(Errc::config, source.path().string() + ": tensor '" + name + "': expected " +
                                    std::to_string(part.piece.numel) + " elements, found " +
                                    std::to_string(source.at(name).numel()));
    }
    source.read_slice(
        name, part.from,
        out.subspan(static_cast<std::size_t>(part.to), static_cast<std::size_t>(part.numel)));
  }
}

}  // namespace acc::checkpoint
