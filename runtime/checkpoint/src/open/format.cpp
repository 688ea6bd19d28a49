// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/dcp/metadata.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/checkpoint/open/series_folder.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "deepspeed/deepspeed.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

namespace acc::checkpoint {

namespace fs = std::filesystem;

namespace {

std::set<std::string> name_set(const InputPath& folder) {
  const auto names = folder.names();
  return {names.begin(), names.end()};
}

std::string listed(const std::set<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  std::size_t i = 0;
  for (const std::string& name : names) {
    if (i++ == kShown) {
      return text + ", … (" + std::to_string(names.size()) + " in all)";
    }
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "nothing" : text;
}

Format format_of_file(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") {
    return Format::safetensors;
  }
  if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
    return Format::torch_file;
  }
  throw Error(Errc::config, path.string() +
                                ": expected a .safetensors, .bin or .pt file, or a folder with a "
                                "checkpoint");
}

// True for the files that HuggingFaceStorageWriter writes per rank:
// "shard-00001-model-00001-of-00002".
bool is_rank_shard(std::string_view name) {
  return name.starts_with("shard-") && name.ends_with(".safetensors");
}

// True for files that only a saved training state has.
bool is_part_of_state(std::string_view name) {
  return name == kManifestFile || name == accelerate::kScalerFile ||
         name == accelerate::scheduler_file(0) || name == accelerate::random_states_file(0);
}

bool any_ends(const std::set<std::string>& names, std::string_view end) {
  return std::ranges::any_of(names, [&](const auto& name) { return name.ends_with(end); });
}

// Returns the format of a folder with these names, or nothing if it is not a checkpoint. The order
// of the checks matters: the save folder of a DeepSpeed run is also a DeepSpeed checkpoint, with
// `latest` and a tag folder, and a save folder may hold model.safetensors, which alone would mean a
// safetensors set.
std::optional<Format> format_of_folder(const InputPath& path, const std::set<std::string>& names) {
  if (names.contains(dcp::kMetadataFile)) {
    return Format::dcp;
  }
  if (std::ranges::any_of(names, is_part_of_state)) {
    return Format::save_folder;
  }
  if (deepspeed::is_checkpoint(path)) {
    return Format::deepspeed;
  }
  const auto model = accelerate::find_model(path, 0);
  if (accelerate::find_optimizer(path, 0) || (model && model->is_folder())) {
    return Format::save_folder;
  }
  if (std::ranges::any_of(names, is_rank_shard)) {
    return Format::dcp_hugging_face;
  }
  if (any_ends(names, ".safetensors") || any_ends(names, kSafetensorsIndex)) {
    return Format::safetensors_set;
  }
  return model ? std::optional(Format::save_folder) : std::nullopt;
}

}  // namespace

std::string to_string(Format format) {
  switch (format) {
    case Format::safetensors: return "safetensors file";
    case Format::safetensors_set: return "folder of safetensors files";
    case Format::torch_file: return "torch.save file";
    case Format::dcp: return "torch DCP folder";
    case Format::dcp_hugging_face: return "folder of torch DCP's safetensors shards";
    case Format::deepspeed: return "DeepSpeed checkpoint";
    case Format::save_folder: break;
  }
  return "folder of a saved training state";
}

// Two cases need more than the path itself: a commit that was killed on a file system without
// exchange ("<path>.acc-new"), and a folder that is not a checkpoint but holds a series of them.
fs::path find_checkpoint(const fs::path& path) {
  const AtomicFolder folder(path, accelerate::is_ours);
  if (fs::path current = folder.current(); current != folder.target()) {
    return current;
  }
  const InputPath opened = path;
  const bool is_checkpoint = read_unchanged(opened, [&] {
    return !opened.is_folder() || format_of_folder(opened, name_set(opened)).has_value();
  });
  return is_checkpoint ? path : SeriesFolder(path).newest().value_or(path);
}

Format format_of(const InputPath& path) {
  if (!path.exists()) {
    throw Error(Errc::config, path.string() + ": no such file or folder");
  }
  if (!path.is_folder()) {
    if (!path.is_file()) {
      throw Error(Errc::config, path.string() + ": not a regular file");
    }
    return format_of_file(path);
  }
  const std::set<std::string> names = name_set(path);
  if (names.contains(kUnfinishedMark)) {
    throw Error(Errc::config, path.string() +
                                  ": not a checkpoint: a save to it was not completed, or "
                                  "is under way");
  }
  if (const auto format = format_of_folder(path, names)) {
    return *format;
  }
  throw Error(Errc::config,
              path.string() +
                  ": not a checkpoint: looked for .metadata (torch DCP), latest or "
                  "*_model_states.pt (DeepSpeed), pytorch_model_fsdp_0, optimizer_0 and similar "
                  "names (a saved training state), *.safetensors, pytorch_model.bin and complete "
                  "checkpoint_<n> (a series); found " +
                  listed(names) +
                  (any_ends(names, ".distcp") ? " (a save that was not completed)" : ""));
}

}  // namespace acc::checkpoint
