// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "convert/outputs.hpp"
#include "convert/save_folder.hpp"

#include <deque>
#include <map>
#include <set>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

/// A DCP folder that is copied with all tensors and values, under their own names and paths.
struct SourceFolder {
  explicit SourceFolder(const InputPath& path) {
    TrainingState training;
    Provenance provenance;
    dcp::read_folder(path, catalog, training, provenance);
    std::map<std::string_view, const StoredTensor*> by_name;
    for (const StoredTensor& tensor : catalog.tensors) {
      by_name[tensor.stored_name] = &tensor;
    }
    for (dcp::Entry& entry : dcp::read_metadata(path).entries) {
      if (entry.path.empty()) {
        entry.path = {entry.name};
      }
      if (entry.is_tensor) {
        folder.sources.push_back(by_name.at(entry.name));
        folder.plan.tensors.push_back({entry.name, entry.path, entry.dtype, entry.shape});
      } else {
        folder.plan.values.push_back({entry.name, entry.path, pickle_of(path, entry), 0});
      }
    }
    reader.emplace(catalog);
  }

  /// Returns the pickle of a value without changing it. Opening the archive checks it.
  static std::string pickle_of(const InputPath& path, const dcp::Entry& entry) {
    const auto file = std::make_shared<const InputFile>(path / entry.value.file);
    const torch::TorchFile archive(file, entry.value.offset, entry.value.nbytes, entry.name);
    for (const archive::Record& record : archive.records()) {
      if (record.name.starts_with("data/")) {
        throw Error(Errc::not_supported, file->path().string() + ": value " + entry.name +
                                             " holds tensors, which cannot be copied");
      }
    }
    for (const archive::Record& record : archive.records()) {
      if (record.name == "data.pkl") {
        std::string text(record.nbytes, '\0');
        file->read(archive.offset() + record.offset, std::as_writable_bytes(std::span(text)));
        return text;
      }
    }
    throw Error(Errc::config, file->path().string() + ": value " + entry.name + " has no data.pkl");
  }

  Catalog catalog;
  DcpFolder folder;
  std::optional<TensorReader> reader;
};

// Only weights change their dtype. Optimizer state stays as it is.
void set_dtype(DcpFolder& folder, std::optional<Dtype> dtype) {
  for (std::size_t i = 0; dtype && i < folder.plan.tensors.size(); ++i) {
    if (folder.sources[i]->kind == "param" && is_real(folder.plan.tensors[i].dtype)) {
      folder.plan.tensors[i].dtype = *dtype;
    }
  }
}

// Cuts each folder for the new number of ranks. A single folder without a name is the output
// itself; otherwise the output is a save folder with a manifest.
Result reshard_folders(const std::vector<std::pair<std::string, InputPath>>& folders,
                       const InputPath& from, const fs::path& out, const Options& options) {
  std::deque<SourceFolder> sources;
  SaveFolder result(from, out, options);
  std::set<std::string> read;
  for (const auto& [name, path] : folders) {
    read.insert(path.filename().string());
    SourceFolder& source = sources.emplace_back(path);
    set_dtype(source.folder, options.dtype);
    source.folder.cut(options.num_processes);
    result.add(name, source.folder, *source.reader);
  }
  if (folders.size() == 1 && folders.front().first.empty()) {
    return result.write(std::nullopt);
  }
  result.add_other_state();
  const Stored stored = open_checkpoint(from);
  if (stored.manifest) {
    check_sizes(*stored.manifest, from);
  }
  Result written = result.write(manifest_of(stored));
  add_other_files(from, std::move(read), out, written);
  return written;
}

// Collects the folders of all models and optimizers. Models without an optimizer are allowed.
Result reshard_save_folder(const InputPath& from, const fs::path& out, const Options& options) {
  std::vector<std::pair<std::string, InputPath>> folders;
  for (int index = 0;; ++index) {
    const auto model = accelerate::find_model(from, index);
    if (!model) {
      break;
    }
    if (format_of(*model) != Format::dcp) {
      throw Error(Errc::not_supported,
                  from.string() + ": " + model->filename().string() + " is a " +
                      to_string(format_of(*model)) +
                      ", which does not depend on the number of ranks; use convert "
                      "--to dcp for a folder that does");
    }
    folders.emplace_back(accelerate::model_folder(index), *model);
    const auto optimizer = accelerate::find_optimizer(from, index);
    if (optimizer && optimizer->is_folder()) {
      folders.emplace_back(accelerate::optimizer_folder(index), *optimizer);
    }
  }
  return reshard_folders(folders, from, out, options);
}

Result reshard_deepspeed(const InputPath& from, const fs::path& out, const Options& options) {
  // The stage is the last character of "DeepSpeed ZeRO 2". Stage 0 shards nothing.
  const Stored stored = open_checkpoint(from);
  Options same = options;
  same.to = Target::deepspeed;
  const char stage = stored.provenance.format.empty() ? '0' : stored.provenance.format.back();
  if (stage < '1' || stage > '3') {
    throw Error(Errc::not_supported, from.string() + " is " + stored.provenance.format +
                                         ", which is not sharded: there is nothing to reshard");
  }
  same.zero_stage = stage - '0';
  return convert(stored, out, same);
}

}  // namespace

namespace {

Result reshard_opened(const InputPath& from, const fs::path& out, const Options& options) {
  const Format format = format_of(from);
  switch (format) {
    case Format::dcp: return reshard_folders({{"", from}}, from, out, options);
    case Format::save_folder: return reshard_save_folder(from, out, options);
    case Format::deepspeed: return reshard_deepspeed(from, out, options);
    default: break;
  }
  throw Error(Errc::not_supported,
              from.string() + " is a " + to_string(format) +
                  ", which is the same for any number of ranks; use convert --to dcp "
                  "or --to deepspeed for one that is cut for ranks");
}

}  // namespace

Result reshard(const fs::path& path, const fs::path& out, const Options& options) {
  const InputPath from = find_checkpoint(path);
  return read_unchanged(from, [&] { return reshard_opened(from, out, options); });
}

}  // namespace acc::checkpoint::conversion
