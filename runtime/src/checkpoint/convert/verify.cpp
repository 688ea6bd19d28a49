#include "checkpoint/convert/verify.hpp"

#include "acc/base/error.hpp"
#include "checkpoint/accelerate/save_folder.hpp"
#include "checkpoint/catalog/tensor_reader.hpp"
#include "checkpoint/convert/parallel.hpp"
#include "checkpoint/dcp/metadata.hpp"
#include "checkpoint/files/crc32.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

/// A piece that is checked at once: so every damaged file is found, not the first alone.
struct Part {
  const StoredTensor* tensor = nullptr;
  StoredPiece piece;
};

std::uint64_t elements_nbytes(const StoredTensor& tensor, const Shape& shape) {
  return static_cast<std::uint64_t>(numel_of(shape)) * size_of(tensor.dtype);
}

/// All records of archives in files, each by its CRC; damage goes to `found`.
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
      buffer_.resize(std::min<std::size_t>(record.nbytes, 1 << 20));
      std::uint32_t crc = 0;
      for (std::uint64_t done = 0; done < record.nbytes; done += buffer_.size()) {
        const auto piece =
            std::span(buffer_).first(std::min<std::size_t>(buffer_.size(), record.nbytes - done));
        archive.file().read(archive.offset() + record.offset + done, piece);
        crc = crc32(crc, piece);
      }
      if (crc != record.crc32) {
        throw Error(Errc::config, archive.file().path().string() + ": record " + record.name +
                                      " is damaged: its checksum is not the stored one");
      }
    }
  }

  Verification& found_;
  std::map<fs::path, std::shared_ptr<const InputFile>> files_;
  std::vector<std::byte> buffer_;
};

bool is_archive(const fs::path& path) {
  static const std::set<std::string> kEndings = {".bin", ".pt", ".pkl", ".pth"};
  return kEndings.contains(path.extension().string());
}

std::vector<std::byte> bytes_of(const fs::path& path) {
  const InputFile file(path);
  std::vector<std::byte> bytes(file.nbytes());
  file.read(0, bytes);
  return bytes;
}

/// The values of a DCP folder, which no catalog lists.
void verify_values(const fs::path& folder, ArchiveCheck& check, Verification& found) {
  const fs::path path = folder / dcp::kMetadataFile;
  try {
    for (const dcp::Entry& entry : dcp::parse_metadata(bytes_of(path), path).entries) {
      if (!entry.is_tensor) {
        check.entry(folder / entry.value.file, entry);
      }
    }
  } catch (const Error& error) {
    found.damaged.push_back({path, "", error.what()});
  }
}

/// What of a checkpoint is no tensor of the catalog: `with_tensors` are files that it lists.
void verify_others(const fs::path& path, const std::optional<Manifest>& manifest,
                   const std::set<fs::path>& with_tensors, Verification& found) {
  ArchiveCheck check(found);
  if (!fs::is_directory(path)) {
    return;
  }
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.path().filename() == dcp::kMetadataFile) {
      verify_values(entry.path().parent_path(), check, found);
    } else if (entry.is_regular_file() && is_archive(entry.path()) &&
               !with_tensors.contains(entry.path())) {
      check.file(entry.path());
    }
  }
  for (const Manifest::File& file : manifest ? manifest->files : std::vector<Manifest::File>{}) {
    try {
      check_size(file, path);
      check_file(*manifest, path, file.path);
    } catch (const Error& error) {
      found.damaged.push_back({path / file.path, "", error.what()});
    }
  }
}

/// The same file is not told twice for the same reason.
void sort_damage(std::vector<Damage>& damaged) {
  std::stable_sort(damaged.begin(), damaged.end(), [](const Damage& a, const Damage& b) {
    return std::tie(a.file, a.tensor) < std::tie(b.file, b.tensor);
  });
  const auto same = [](const Damage& a, const Damage& b) {
    return a.file == b.file && a.tensor == b.tensor && a.reason == b.reason;
  };
  damaged.erase(std::unique(damaged.begin(), damaged.end(), same), damaged.end());
}

}  // namespace

void verify_tensors(const Stored& stored, int num_threads, const Progress& progress,
                    Verification& found) {
  // So many at a time: a checkpoint of thousands of ranks has millions.
  constexpr std::size_t kAtOnce = 16'384;
  std::uint64_t total = 0;
  for (const StoredTensor& tensor : stored.catalog.tensors) {
    total += elements_nbytes(tensor, tensor.shape);
  }
  ProgressMeter meter(progress, "checking", total);
  TensorReader reader(stored.catalog);
  std::mutex finding;
  std::set<const StoredTensor*> unchecked;
  std::vector<Part> parts;
  const auto check = [&](std::size_t i, std::size_t) {
    const auto& [tensor, piece] = parts[i];
    const std::uint64_t nbytes = elements_nbytes(*tensor, piece.box.sizes);
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

Verification verify(const fs::path& path, int num_threads, const Progress& progress) {
  const Format format = format_of(path);
  Verification found;
  std::set<fs::path> with_tensors;
  std::optional<Manifest> manifest;
  for (int index = 0; index == 0 || (format == Format::save_folder &&
                                     accelerate::find_model(path, index).has_value());
       ++index) {
    try {
      const Stored stored = open_checkpoint(path, Want::everything, index);
      manifest = stored.manifest;
      with_tensors.insert(stored.catalog.files.begin(), stored.catalog.files.end());
      verify_tensors(stored, num_threads, progress, found);
    } catch (const Error& error) {
      found.damaged.push_back({path, "", error.what()});
    }
  }
  verify_others(path, manifest, with_tensors, found);
  sort_damage(found.damaged);
  return found;
}

}  // namespace acc::checkpoint::conversion
