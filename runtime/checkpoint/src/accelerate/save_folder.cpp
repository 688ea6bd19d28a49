// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/save_folder.hpp"

#include "acc/checkpoint/files/manifest.hpp"
#include "files/name_parser.hpp"

#include <string_view>

namespace acc::checkpoint::accelerate {

namespace {

/// Suffix of single files. Model or optimizer number 0 has none; folders always have a number.
std::string suffix(int index) {
  return index == 0 ? "" : "_" + std::to_string(index);
}

/// True for "<stem><end>" and "<stem>_<number><end>".
bool is_indexed(std::string_view name, std::string_view stem, std::string_view end) {
  NameParser parser(name);
  if (!parser.take(stem)) {
    return false;
  }
  return !parser.take("_") || parser.number() ? parser.take(end) && parser.done() : false;
}

/// True for "<stem><number><end>".
bool is_numbered(std::string_view name, std::string_view stem, std::string_view end) {
  NameParser parser(name);
  return parser.take(stem) && parser.number() && parser.take(end) && parser.done();
}

/// True for "pytorch_model_fsdp_rank<rank>.bin" and "pytorch_model_fsdp_<index>_rank<rank>.bin".
bool is_local_model(std::string_view name) {
  NameParser parser(name);
  if (!parser.take("pytorch_model_fsdp_")) {
    return false;
  }
  return (!parser.number() || parser.take("_")) && parser.take("rank") && parser.number() &&
         parser.take(".bin") && parser.done();
}

bool is_our_file(std::string_view name) {
  return name == kManifestFile || name == kScalerFile || is_local_model(name) ||
         is_indexed(name, "pytorch_model_fsdp", ".bin") || is_indexed(name, "optimizer", ".bin") ||
         is_indexed(name, "model", ".safetensors") || is_indexed(name, "pytorch_model", ".bin") ||
         is_indexed(name, "scheduler", ".bin") || is_numbered(name, "random_states_", ".pkl") ||
         is_numbered(name, "custom_checkpoint_", ".pkl");
}

/// True for ".metadata" and "__<rank>_<file>.distcp".
bool is_dcp_file(std::string_view name) {
  NameParser parser(name);
  return name == ".metadata" || (parser.take("__") && parser.number() && parser.take("_") &&
                                 parser.number() && parser.take(".distcp") && parser.done());
}

}  // namespace

std::string model_folder(int index) {
  return "pytorch_model_fsdp_" + std::to_string(index);
}
std::string optimizer_folder(int index) {
  return "optimizer_" + std::to_string(index);
}
std::string model_file(int index) {
  return "pytorch_model_fsdp" + suffix(index) + ".bin";
}
std::string optimizer_file(int index) {
  return "optimizer" + suffix(index) + ".bin";
}

std::string plain_model_file(int index) {
  return "model" + suffix(index) + ".safetensors";
}
std::string plain_bin_file(int index) {
  return "pytorch_model" + suffix(index) + ".bin";
}

std::string local_model_file(int index, int rank) {
  return "pytorch_model_fsdp" + suffix(index) + "_rank" + std::to_string(rank) + ".bin";
}

std::string scheduler_file(int index) {
  return "scheduler" + suffix(index) + ".bin";
}
std::string random_states_file(int rank) {
  return "random_states_" + std::to_string(rank) + ".pkl";
}
std::string custom_file(int index) {
  return "custom_checkpoint_" + std::to_string(index) + ".pkl";
}

// Folders first. Accelerate has used three names for them; the last one is DeepSpeed's tag folder.
std::optional<InputPath> find_model(const InputPath& folder, int index) {
  for (const std::string& name : {model_folder(index), "pytorch_model_" + std::to_string(index),
                                  "pytorch_model" + suffix(index)}) {
    if ((folder / name).is_folder()) {
      return folder / name;
    }
  }
  // plain_bin_file comes last, because we also write it as a 16-bit copy next to the other forms.
  for (const std::string& name : {model_file(index), plain_model_file(index),
                                  local_model_file(index, 0), plain_bin_file(index)}) {
    if ((folder / name).is_file()) {
      return folder / name;
    }
  }
  return std::nullopt;
}

std::optional<InputPath> find_optimizer(const InputPath& folder, int index) {
  if ((folder / optimizer_folder(index)).is_folder()) {
    return folder / optimizer_folder(index);
  }
  if ((folder / optimizer_file(index)).is_file()) {
    return folder / optimizer_file(index);
  }
  return std::nullopt;
}

bool is_ours(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == std::string::npos) {
    return is_our_file(path);
  }
  const std::string_view folder = std::string_view(path).substr(0, slash);
  return (is_numbered(folder, "pytorch_model_fsdp_", "") ||
          is_numbered(folder, "optimizer_", "")) &&
         is_dcp_file(std::string_view(path).substr(slash + 1));
}

}  // namespace acc::checkpoint::accelerate
