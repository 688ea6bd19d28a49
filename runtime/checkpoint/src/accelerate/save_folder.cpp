// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/save_folder.hpp"

#include "acc/checkpoint/files/manifest.hpp"

#include <regex>

namespace acc::checkpoint::accelerate {

namespace {

/// Suffix of single files. Model or optimizer number 0 has none; folders always have a number.
std::string suffix(int index) {
  return index == 0 ? "" : "_" + std::to_string(index);
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
  static const std::regex kFiles(
      R"((random_states|custom_checkpoint)_[0-9]{1,9}\.pkl|)"
      R"(pytorch_model_fsdp(_[0-9]{1,9})?(_rank[0-9]{1,9})?\.bin|)"
      R"((optimizer|pytorch_model|scheduler)(_[0-9]{1,9})?\.bin|model(_[0-9]{1,9})?\.safetensors|)"
      R"((pytorch_model_fsdp|optimizer)_[0-9]{1,9}/(\.metadata|__[0-9]{1,9}_[0-9]{1,9}\.distcp))");
  return path == kManifestFile || path == kScalerFile || std::regex_match(path, kFiles);
}

}  // namespace acc::checkpoint::accelerate
