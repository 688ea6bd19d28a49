// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/convert/verify.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

// Verification reads everything: first all tensors of each model and optimizer, piece by piece;
// then archives without tensors, the values of DCP folders, and the files that the manifest lists.
// A failure is recorded and the rest is still checked.
namespace {

/// Checks archives record by record against their CRCs. Damage is added to `found`.
class ArchiveCheck {
 public:
  explicit ArchiveCheck(Verification& found) : found_(found) {}

  void file(const fs::path& path) {
    guarded(path, "", [&] { records(torch::TorchFile(path)); });
  }

  void entry(const fs::path& path, const dcp::Entry& value) {
    guarded(path, value.name, [&] {
      auto& opened = files_[path];
      if (!opened) {
        opened = std::make_shared<const InputFile>(path);
      }
      records(torch::TorchFile(opened, value.value.offset, value.value.nbytes, value.name));
    });
  }

 private:
  template <typename Body>
  void guarded(const fs::path& path, const std::string& name, const Body& body) {
    ++found_.files;
    try {
      body();
    } catch (const Error& error) {
      found_.damaged.push_back({path, name, error.what()});
    }
  }

  void records(const torch::TorchFile& archive) {
    for (const archive::Record& record : archive.records()) {
      const std::uint32_t crc =
          crc32_of(archive.file(), archive.offset() + record.offset, record.nbytes);
      if (record.crc32 != 0 && crc != record.crc32) {  // 0: written without checksums
        throw Error(Errc::config, archive.file().path().string() + ": record " + record.name +
                                      " is damaged: its checksum does not match its bytes");
      }
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
void verify_values(const fs::path& folder, ArchiveCheck& check, Verification& found) {
  try {
    for (const dcp::Entry& entry : dcp::read_metadata(folder).entries) {
      if (!entry.is_tensor) {
        check.entry(folder / entry.value.file, entry);
      }
    }
  } catch (const Error& error) {
    found.damaged.push_back({folder / dcp::kMetadataFile, "", error.what()});
  }
}

/// Files and manifest of the parts that were opened.
struct Opened {
  std::set<fs::path> files;  ///< files with tensors
  std::optional<Manifest> manifest;
};

/// Checks what is in none of the catalogs.
void verify_others(const fs::path& path, const Opened& opened, Verification& found) {
  ArchiveCheck check(found);
  if (!fs::is_directory(path)) {
    return;
  }
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().filename() == dcp::kMetadataFile) {
      verify_values(entry.path().parent_path(), check, found);
    } else if (entry.is_regular_file() && is_archive(entry.path()) &&
               !opened.files.contains(entry.path())) {
      check.file(entry.path());
    }
  }
  const std::optional<Manifest>& manifest = opened.manifest;
  for (const Manifest::File& file : manifest ? manifest->files : std::vector<Manifest::File>{}) {
    try {
      check_size(file, path);
      check_file(*manifest, path, file.path);
    } catch (const Error& error) {
      found.damaged.push_back({path / file.path, "", error.what()});
    }
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
    try {
      if (!reader.verify(*tensor, piece)) {
        const std::scoped_lock lock(finding);
        found.unchecked_nbytes += nbytes;
        unchecked.insert(tensor);
      }
    } catch (const Error& error) {
      const std::scoped_lock lock(finding);
      found.damaged.push_back(
          {stored.catalog.files[piece.file], tensor->stored_name, error.what()});
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
  try {
    const Stored stored = open();
    opened.manifest = stored.manifest;
    opened.files.insert(stored.catalog.files.begin(), stored.catalog.files.end());
    verify_tensors(stored, num_threads, progress, found);
    if (!stored.training.names_unknown.empty()) {
      found.names_unknown.push_back(stored.training.names_unknown);
    }
    return true;
  } catch (const Error& error) {
    found.damaged.push_back({path, "", error.what()});
    return false;
  }
}

}  // namespace

Verification verify(const fs::path& path, int num_threads, ShowProgress progress) {
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
  sort_damage(found.damaged);
  return found;
}

}  // namespace acc::checkpoint::conversion
