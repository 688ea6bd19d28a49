// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "catalog/group_values.hpp"
#include "dcp/planned_pieces.hpp"
#include "dcp/state_names.hpp"
#include "torch/scalar.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <utility>

namespace acc::checkpoint::dcp {

namespace {

// Throws with the reason why a folder has no `.metadata`. "__3.metadata" is written by each rank
// for itself (no_dist, or use_collectives=False). Such a folder does not say which boxes make up a
// tensor.
void refuse_unfinished(const InputPath& folder) {
  for (const std::string& name : folder.names()) {
    if (name.starts_with("__") && name.ends_with(kMetadataFile)) {
      throw Unreadable(folder.string() + ": was saved without coordination between ranks ('" +
                       name + "'), which is not supported; save with one .metadata for all ranks");
    }
  }
  throw Error(Errc::config, folder.string() +
                                ": no .metadata in it, which is written last: the save was not "
                                "completed, or this is not a torch DCP folder");
}

/// The files of the folder. Each is opened when an entry first refers to it.
class Files {
 public:
  Files(const InputPath& folder, Catalog& catalog) : folder_(folder), catalog_(catalog) {}

  /// Returns the number in the catalog of the file that contains all of `place`.
  std::uint32_t holding(const Place& place, const std::string& stored_name) {
    const auto [at, is_new] = known_.try_emplace(place.file);
    File& file = at->second;
    const InputPath path = folder_ / place.file;
    if (is_new) {
      if (!path.is_file()) {
        throw Error(Errc::config, path.string() + ": is missing; '" + stored_name +
                                      "' is in it according to .metadata");
      }
      file = {catalog_.file(path), path.nbytes(), nullptr};
    }
    if (place.offset > file.nbytes || place.nbytes > file.nbytes - place.offset) {
      throw Error(Errc::config, path.string() + ": truncated: '" + stored_name + "' is at bytes " +
                                    std::to_string(place.offset) + " to " +
                                    std::to_string(place.offset) + " + " +
                                    std::to_string(place.nbytes) + ", the file has " +
                                    std::to_string(file.nbytes));
    }
    return file.number;
  }

  /// Place of a piece whose file is in the catalog.
  [[nodiscard]] Place place_of(const StoredPiece& piece) const {
    const auto file = catalog_.files[piece.file].path().lexically_relative(folder_);
    return {file.generic_string(), piece.offset, piece.nbytes, piece.mark};
  }

  /// Opens the archive at a place that `holding` has checked.
  torch::TorchFile open(const Place& place, const std::string& stored_name) {
    File& file = known_.at(place.file);
    if (file.opened == nullptr) {
      file.opened = std::make_shared<InputFile>(folder_ / place.file);
    }
    torch::TorchFile archive(file.opened, place.offset, place.nbytes, stored_name);
    archive.check_mark(place.mark);
    return archive;
  }

  /// Returns the number of ranks that wrote: 1 + the greatest R of "__R_K.distcp".
  [[nodiscard]] int ranks() const {
    int ranks = 0;
    for (const auto& [name, file] : known_) {
      int rank = 0;
      const char* end = name.data() + name.size();
      if (name.starts_with("__") && std::from_chars(name.data() + 2, end, rank).ec == std::errc() &&
          rank >= 0 && rank < 1'000'000'000) {
        ranks = std::max(ranks, rank + 1);
      }
    }
    return ranks;
  }

 private:
  struct File {
    std::uint32_t number = 0;
    std::uint64_t nbytes = 0;
    std::shared_ptr<const InputFile> opened;
  };

  const InputPath& folder_;
  Catalog& catalog_;
  std::map<std::string, File> known_;
};

StoredTensor stored_tensor(const Entry& entry, StateName name, Files& files) {
  StoredTensor tensor{.name = std::move(name.name),
                      .kind = std::move(name.kind),
                      .stored_name = entry.name,
                      .dtype = entry.dtype,
                      .shape = entry.shape,
                      .pieces = {}};
  for (const Chunk& chunk : entry.chunks) {
    const std::uint32_t file = files.holding(chunk.place, entry.name);
    if (chunk.box.numel() > 0) {
      tensor.pieces.push_back({.box = chunk.box,
                               .file = file,
                               .offset = chunk.place.offset,
                               .nbytes = chunk.place.nbytes,
                               .packing = Packing::archive});
    }
  }
  return tensor;
}

// Reads the number of times that the optimizer has updated a parameter.
std::int64_t read_step(const Entry& entry, const Place& place, Files& files) {
  files.holding(place, entry.name);
  const torch::TorchFile file = files.open(place, entry.name);
  return torch::count(file, pickle::Node(file.root(), file.file().path().string(), entry.name));
}

/// Reads the settings of parameter groups.
class Groups {
 public:
  explicit Groups(Files& files) : files_(files) {}

  /// Reads a value, or a tensor of one element, at `place`. Returns false if it is left out.
  bool read(const Entry& entry, const Place& place, const StateName& name) {
    constexpr std::size_t kMaxGroups = 100'000;
    files_.holding(place, entry.name);
    if (name.kind != "group" || name.group >= kMaxGroups) {
      return false;
    }
    StoredGroup& group = at(name);
    const torch::TorchFile file = files_.open(place, entry.name);
    const pickle::Node node(file.root(), file.file().path().string(), entry.name);
    if (!entry.is_tensor) {
      return read_group_key(name.key, node, group);
    }
    group.hyper_parameters[name.key] = torch::scalar(file, node);
    return true;
  }

  /// Returns the groups. Parameters with the same settings of their own are one group.
  std::vector<StoredGroup> take() {
    for (StoredGroup& one : of_parameters_) {
      const auto same = std::ranges::find_if(groups_, [&one](const StoredGroup& group) {
        return group.hyper_parameters == one.hyper_parameters && group.others == one.others;
      });
      if (same == groups_.end()) {
        groups_.push_back(std::move(one));
      } else {
        same->parameters.push_back(one.parameters.front());
      }
    }
    return std::move(groups_);
  }

 private:
  StoredGroup& at(const StateName& name) {
    if (name.parameter.empty()) {
      groups_.resize(std::max(groups_.size(), name.group + 1));
      return groups_[name.group];
    }
    const auto [number, is_new] = numbers_.try_emplace(name.parameter, of_parameters_.size());
    if (is_new) {
      of_parameters_.emplace_back().parameters = {name.parameter};
    }
    return of_parameters_[number->second];
  }

  Files& files_;
  std::vector<StoredGroup> groups_;
  std::vector<StoredGroup> of_parameters_;
  std::map<std::string, std::size_t> numbers_;  ///< in of_parameters_
};

/// `rule`: of a plan whose tensors are the first entries; null: the entries have all their chunks.
void read_entries(const std::vector<Entry>& entries, const std::shared_ptr<const PieceRule>& rule,
                  Files& files, Catalog& catalog, TrainingState& training) {
  const bool has_step = training.step.has_value();
  std::vector<StateName> names = state_names(entries);
  Groups groups(files);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Entry& entry = entries[i];
    if (!entry.is_tensor) {
      if (!groups.read(entry, entry.value, names[i])) {
        training.unread.push_back(entry.name);
      }
      continue;
    }
    const bool is_step = names[i].kind == "step" && !has_step;
    if (names[i].kind == "group" && !entry.chunks.empty()) {
      static_cast<void>(groups.read(entry, entry.chunks.front().place, names[i]));
    }
    StoredTensor& tensor =
        catalog.tensors.emplace_back(stored_tensor(entry, std::move(names[i]), files));
    tensor.rule = rule;
    tensor.number = i;
    const std::vector<StoredPiece> pieces =
        is_step ? tensor.all_pieces() : std::vector<StoredPiece>{};
    if (!pieces.empty()) {
      training.count_steps(read_step(entry, files.place_of(pieces.front()), files));
    }
  }
  if (std::vector<StoredGroup> found = groups.take(); !found.empty()) {
    training.groups = std::move(found);
  }
}

}  // namespace

Metadata read_metadata(const InputPath& folder) {
  const InputPath path = folder / kMetadataFile;
  if (!path.is_file()) {
    refuse_unfinished(folder);
  }
  const InputFile file(path);
  std::vector<std::byte> bytes(file.nbytes());
  file.read(0, bytes);
  return parse_metadata(bytes, path);
}

void read_folder(const InputPath& folder, Catalog& catalog, TrainingState& training,
                 Provenance& provenance) {
  if (!folder.is_folder()) {
    throw Error(Errc::config, folder.string() + ": is not a folder");
  }
  static_cast<void>(
      folder.names_of([](const std::string& name) { return name.ends_with(".distcp"); }));
  Files files(folder, catalog);
  read_entries(read_metadata(folder).entries, nullptr, files, catalog, training);
  provenance.format = "torch DCP";
  provenance.writer = "torch";
  provenance.world_size = files.ranks();
}

void read_planned_folder(const InputPath& folder, FolderPlan plan,
                         const std::vector<std::uint64_t>& file_nbytes, Catalog& catalog,
                         TrainingState& training, Provenance& provenance) {
  const std::uint32_t first_file = static_cast<std::uint32_t>(catalog.files.size());
  for (int rank = 0; rank < plan.world_size; ++rank) {
    catalog.file(folder / file_name(rank), file_nbytes.at(static_cast<std::size_t>(rank)));
  }
  provenance.format = "torch DCP";
  provenance.world_size = plan.world_size;
  const std::vector<Entry> entries = entries_of(plan);
  Files files(folder, catalog);
  read_entries(entries, std::make_shared<PlannedPieces>(std::move(plan), first_file), files,
               catalog, training);
}

}  // namespace acc::checkpoint::dcp
