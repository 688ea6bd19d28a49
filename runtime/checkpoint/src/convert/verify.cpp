// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/verify.hpp"

#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string_view>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

// Verification reads everything: first all tensors of each model and optimizer, piece by piece;
// then archives without tensors, the values of DCP folders, and the files that the manifest lists.
// A failure is recorded and the rest is still checked.
namespace {

/// Adds what is wrong with a file to `found`.
template <typename Body>
void guarded(Verification& found, const fs::path& path, const std::string& tensor,
             const Body& body) {
  try {
    body();
  } catch (const Unreadable& error) {
    found.unreadable.push_back({path, tensor, error.what()});
  } catch (const Error& error) {
    found.damaged.push_back({path, tensor, error.what()});
  }
}

/// Checks archives record by record against their CRCs.
class ArchiveCheck {
 public:
  explicit ArchiveCheck(Verification& found) : found_(found) {}

  void file(const InputPath& path) {
    ++found_.files;
    guarded(found_, path, "", [&] {
      const auto opened = std::make_shared<const InputFile>(path);
      check_form(*opened);
      records(opened, 0, opened->nbytes(), "");
    });
  }

  void entry(const InputPath& path, const dcp::Entry& value) {
    ++found_.files;
    guarded(found_, path, value.name, [&] {
      auto& opened = files_[path.path()];
      if (!opened) {
        opened = std::make_shared<const InputFile>(path);
      }
      records(opened, value.value.offset, value.value.nbytes, value.name);
    });
  }

 private:
  /// A folder may hold files of other programs under these endings. Those under the names of a
  /// checkpoint must be archives.
  static void check_form(const InputFile& file) {
    constexpr std::string_view kZip = "PK\3\4";
    std::array<char, kZip.size()> begin{};
    const std::string name = file.path().filename().string();
    if (accelerate::is_ours(name) || name.ends_with("_states.pt") || name.starts_with("sampler") ||
        name.starts_with("dl_state_dict") || file.nbytes() < begin.size()) {
      return;
    }
    file.read(0, std::as_writable_bytes(std::span(begin)));
    if (std::string_view(begin.data(), begin.size()) != kZip) {
      throw Unreadable(file.path().string() + ": is no archive of torch.save");
    }
  }

  // The values in an archive may be of any class. The records are checked also if they are of one
  // that is not known here.
  static void records(const std::shared_ptr<const InputFile>& file, std::uint64_t offset,
                      std::uint64_t nbytes, const std::string& what) {
    const std::string where = file->path().string() + (what.empty() ? "" : ", " + what);
    for (const archive::Record& record : torch::read_directory(*file, offset, nbytes, where)) {
      const std::uint32_t crc = crc32_of(*file, offset + record.offset, record.nbytes);
      if (record.crc32 != 0 && crc != record.crc32) {  // 0: written without checksums
        throw Error(Errc::config, where + ": record " + record.name +
                                      " is damaged: its checksum does not match its bytes");
      }
    }
    try {
      const torch::TorchFile values(file, offset, nbytes, what);
    } catch (const Unreadable&) {
    }
  }

  Verification& found_;
  std::map<fs::path, std::shared_ptr<const InputFile>> files_;
};

bool is_archive(const fs::path& path) {
  static const std::set<std::string> kEndings = {".bin", ".pt", ".pkl", ".pth"};
  return kEndings.contains(path.extension().string());
}

/// Checks the pickled values of a DCP folder, which are in no catalog.
void verify_values(const InputPath& folder, ArchiveCheck& check, Verification& found) {
  guarded(found, folder / dcp::kMetadataFile, "", [&] {
    for (const dcp::Entry& entry : dcp::read_metadata(folder).entries) {
      if (!entry.is_tensor) {
        check.entry(folder / entry.value.file, entry);
      }
    }
  });
}

/// Files and manifest of the parts that were opened.
struct Opened {
  std::set<fs::path> files;  ///< files with tensors
  std::optional<Manifest> manifest;
};

/// Checks the archives below a folder, also in its subfolders.
void verify_folder(const InputPath& folder, const Opened& opened, ArchiveCheck& check,
                   Verification& found) {
  for (const std::string& name : folder.names()) {
    const InputPath path = folder / name;
    if (name == dcp::kMetadataFile) {
      verify_values(folder, check, found);
    } else if (!fs::is_symlink(path.path()) && path.is_folder()) {
      verify_folder(path, opened, check, found);
    } else if (path.is_file() && is_archive(path) && !opened.files.contains(path)) {
      check.file(path);
    }
  }
}

/// Checks what is in none of the catalogs. A file that could not be opened as an archive is damaged
/// already.
void verify_others(const InputPath& path, const Opened& opened, Verification& found) {
  ArchiveCheck check(found);
  if (!path.is_folder()) {
    if (is_archive(path) && !opened.files.contains(path) && found.damaged.empty()) {
      check.file(path);
    }
    return;
  }
  verify_folder(path, opened, check, found);
  const std::optional<Manifest>& manifest = opened.manifest;
  for (const Manifest::File& file : manifest ? manifest->files : std::vector<Manifest::File>{}) {
    guarded(found, path / file.path, "", [&] {
      check_size(file, path);
      check_file(file, path);
    });
  }
}

/// Sorts by file and tensor, and removes duplicate reasons.
void sort_damage(std::vector<Damage>& damaged) {
  std::set<std::string> seen;
  std::erase_if(damaged, [&](const Damage& damage) { return !seen.insert(damage.reason).second; });
  std::stable_sort(damaged.begin(), damaged.end(), [](const Damage& a, const Damage& b) {
    return std::tie(a.file, a.tensor) < std::tie(b.file, b.tensor);
  });
}

}  // namespace

void verify_tensors(const Stored& stored, int num_threads, ShowProgress progress,
                    Verification& found) {
  // Number of pieces in memory at a time. A checkpoint of thousands of ranks has millions.
  constexpr std::size_t kAtOnce = 16'384;
  std::uint64_t total = 0;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    total += static_cast<std::uint64_t>(numel_of(tensor.shape)) * size_of(tensor.dtype);
  }
  ProgressMeter meter(progress, Component::launcher, "checking", total);
  TensorReader reader(stored.catalog);
  std::mutex finding;
  std::set<const StoredTensor*> unchecked;
  std::vector<Part> parts;
  const auto check = [&](std::size_t i, std::size_t) {
    const auto& [tensor, piece] = parts[i];
    const std::uint64_t nbytes = parts[i].nbytes();
    Verification one;
    bool is_checked = true;
    guarded(one, stored.catalog.files[piece.file], tensor->stored_name,
            [&, tensor = tensor, &piece = piece] { is_checked = reader.verify(*tensor, piece); });
    {
      const std::scoped_lock lock(finding);
      std::ranges::move(one.damaged, std::back_inserter(found.damaged));
      std::ranges::move(one.unreadable, std::back_inserter(found.unreadable));
      if (!is_checked) {
        found.unchecked_nbytes += nbytes;
        unchecked.insert(tensor);
      }
    }
    meter.add(nbytes);
  };
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    tensor.for_each_piece(0, numel_of(tensor.shape), [&](const StoredPiece& piece) {
      parts.push_back({&tensor, piece});
    });
    if (parts.size() >= kAtOnce || &tensor == &stored.catalog.tensors.back()) {
      for_each_parallel(parts.size(), num_threads, check);
      parts.clear();
    }
  }
  found.tensors += stored.catalog.tensors.size();
  found.nbytes += total;
  found.unchecked_tensors += unchecked.size();
}

namespace {

/// Opens and checks a checkpoint. Returns true if it could be opened.
bool verify_opened(const std::function<Stored()>& open, const fs::path& path, int num_threads,
                   ShowProgress progress, Opened& opened, Verification& found) {
  bool is_open = false;
  guarded(found, path, "", [&] {
    const Stored stored = open();
    is_open = true;
    opened.manifest = stored.manifest;
    for (const InputPath& file : stored.catalog.files) {
      opened.files.insert(file.path());
    }
    verify_tensors(stored, num_threads, progress, found);
    if (!stored.training.names_unknown.empty()) {
      found.names_unknown.push_back(stored.training.names_unknown);
    }
  });
  return is_open;
}

Verification verify_path(const InputPath& path, int num_threads, ShowProgress progress) {
  const Format format = format_of(path);
  Verification found;
  Opened opened;
  for (int index = 0; index == 0 || (format == Format::save_folder &&
                                     accelerate::find_model(path, index).has_value());
       ++index) {
    const auto all = [&] { return open_checkpoint(path, Want::everything, index); };
    if (verify_opened(all, path, num_threads, progress, opened, found) ||
        format != Format::save_folder) {
      continue;
    }
    // One part of a save folder is damaged. The other one is still checked.
    for (const auto& part :
         {accelerate::find_model(path, index), accelerate::find_optimizer(path, index)}) {
      if (part) {
        verify_opened([&] { return open_checkpoint(*part); }, *part, num_threads, progress, opened,
                      found);
      }
    }
  }
  verify_others(path, opened, found);
  path.check_unchanged();
  sort_damage(found.damaged);
  sort_damage(found.unreadable);
  return found;
}

}  // namespace

Verification verify(const fs::path& path, int num_threads, ShowProgress progress) {
  const InputPath from = path;
  return read_unchanged(from, [&] { return verify_path(from, num_threads, progress); });
}

}  // namespace acc::checkpoint::conversion
