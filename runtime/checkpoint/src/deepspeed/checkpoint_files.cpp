// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/checkpoint_files.hpp"

#include "acc/checkpoint/files/errors.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "deepspeed/deepspeed.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>
#include <string>

namespace acc::checkpoint::deepspeed {

namespace {

/// Meaning of a file's name.
struct FileName {
  enum class Kind { other, module, rank_module, optimizer, refused };
  Kind kind = Kind::other;
  int rank = 0;
  const char* refusal = "";
};

constexpr const char* kTensorParallel = "a rank of tensor parallelism";
constexpr const char* kPipeline = "a layer of pipeline parallelism, or an expert";

// Parses the names that DeepSpeed gives its files: mp_rank_00_model_states.pt (stages 0 to 2),
// zero_pp_rank_R_mp_rank_00_model_states.pt (stage 3),
// [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt (stages 1 to 3).
FileName parse(const std::string& name) {
  using Kind = FileName::Kind;
  static const std::regex kOther("(layer_|expert_|expp_rank_).*_states\\.pt");
  static const std::regex kName(
      "(?:(bf16_)?zero_pp_rank_([0-9]{1,9})_)?mp_rank_([0-9]{1,9})(.*_states\\.pt)");
  if (std::regex_match(name, kOther)) {
    return {.kind = Kind::refused, .refusal = kPipeline};
  }
  std::smatch found;
  if (!std::regex_match(name, found, kName)) {
    return {};
  }
  const bool is_of_rank = found[2].matched;
  const bool is_module = found[4] == "_model_states.pt" && !found[1].matched;
  if (!is_of_rank && !is_module) {
    return {};
  }
  if (std::stoi(found[3]) != 0) {
    return {.kind = Kind::refused, .refusal = kTensorParallel};
  }
  return {.kind = !is_of_rank                      ? Kind::module
                  : is_module                      ? Kind::rank_module
                  : found[4] == "_optim_states.pt" ? Kind::optimizer
                                                   : Kind::other,
          .rank = is_of_rank ? std::stoi(found[2]) : 0};
}

/// Returns the tag that `latest` names; "" if there is no such file. Throws Error(config) if it is
/// a pipe or a device, because reading it could block forever.
std::string latest_tag(const InputPath& folder) {
  const InputPath path = folder / "latest";
  // Some programs keep a symbolic link to a folder under this name.
  if (!path.exists() || path.is_folder()) {
    return "";
  }
  constexpr std::uint64_t kLongest = 4096;
  // A later save may name its own tag here, and leaves the files of this one as they are.
  std::string tag = InputFile(path.path()).text(kLongest);
  const auto end = tag.find_last_not_of(" \n\r\t");
  tag.resize(end == std::string::npos ? 0 : end + 1);
  // A tag must be a folder here. A name with a slash could lead out of this one.
  const bool is_name = tag.find('/') == std::string::npos && tag != "." && tag != ".." &&
                       tag.find('\0') == std::string::npos;
  return is_name ? tag : "";
}

bool is_state(const std::string& name) {
  return parse(name).kind != FileName::Kind::other;
}

using ByRank = std::map<int, InputPath>;

void add(ByRank& files, int rank, const InputPath& path) {
  const auto [entry, is_new] = files.try_emplace(rank, path);
  if (!is_new) {
    throw Error(Errc::config,
                path.path().parent_path().string() + ": rank " + std::to_string(rank) +
                    " has two files, " + entry->second.filename().string() + " and " +
                    path.filename().string() + ": two checkpoints were saved over each other");
  }
}

// Returns the files by rank, from 0 without gaps.
std::vector<InputPath> in_order(const ByRank& files, const InputPath& folder, const char* what) {
  std::vector<InputPath> result;
  for (const auto& [rank, path] : files) {
    if (rank != static_cast<int>(result.size())) {
      throw Error(Errc::config, folder.string() + ": " + what + " of rank " +
                                    std::to_string(result.size()) +
                                    " are missing, but those of rank " + std::to_string(rank) +
                                    " exist (" + path.filename().string() + ")");
    }
    result.push_back(path);
  }
  return result;
}

InputPath tag_folder(const InputPath& path) {
  const std::string tag = latest_tag(path);
  if (tag.empty()) {
    return path;
  }
  if (!(path / tag).is_folder()) {
    throw Error(Errc::config, (path / "latest").string() + ": names the tag '" + tag +
                                  "', but there is no folder with that name");
  }
  return path / tag;
}

}  // namespace

// A folder with tags, but without the one that `latest` names, is a damaged checkpoint, also if it
// has weights in other formats.
bool is_checkpoint(const InputPath& path) {
  const std::string tag = latest_tag(path);
  const auto has_states = [](const InputPath& folder) {
    return folder.is_folder() && std::ranges::any_of(folder.names(), is_state);
  };
  if (tag.empty() || (path / tag).exists()) {
    return has_states(tag.empty() ? path : path / tag);
  }
  return std::ranges::any_of(path.names(),
                             [&](const std::string& name) { return has_states(path / name); });
}

CheckpointFiles list_files(const InputPath& path) {
  CheckpointFiles files{
      .folder = tag_folder(path), .module = {}, .rank_modules = {}, .optimizers = {}};
  ByRank modules, optimizers;
  for (const std::string& each : files.folder.names_of(is_state)) {
    const FileName name = parse(each);
    const InputPath file = files.folder / each;
    switch (name.kind) {
      case FileName::Kind::other: break;
      case FileName::Kind::module: files.module = file; break;
      case FileName::Kind::rank_module: add(modules, name.rank, file); break;
      case FileName::Kind::optimizer: add(optimizers, name.rank, file); break;
      case FileName::Kind::refused:
        throw Unreadable(file.string() + ": holds " + name.refusal +
                         "; only data-parallel ZeRO checkpoints are supported; " +
                         "merge this one with DeepSpeed's own tools");
    }
  }
  files.rank_modules = in_order(modules, files.folder, "the model states");
  files.optimizers = in_order(optimizers, files.folder, "the optimizer states");
  if (!files.module && files.rank_modules.empty()) {
    const bool is_universal = (files.folder / "zero").is_folder();
    throw Error(
        is_universal ? Errc::not_supported : Errc::config,
        files.folder.string() + (is_universal ? ": a DeepSpeed universal checkpoint, which is "
                                                "not supported; use the one it was made from"
                                              : ": has no *_model_states.pt file of DeepSpeed"));
  }
  return files;
}

}  // namespace acc::checkpoint::deepspeed
