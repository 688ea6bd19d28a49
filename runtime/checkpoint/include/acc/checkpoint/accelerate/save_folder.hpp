// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/files/input_path.hpp"

#include <optional>
#include <string>

/// Names in a folder of Accelerate's save_state, old and new (docs/formats/accelerate.md).
namespace acc::checkpoint::accelerate {

/// "pytorch_model_fsdp_0" and "optimizer_0": folders of SHARDED_STATE_DICT.
std::string model_folder(int index);
std::string optimizer_folder(int index);
/// "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin" and "optimizer.bin": FULL_STATE_DICT.
std::string model_file(int index);
std::string optimizer_file(int index);
/// "model.safetensors", "model_1.safetensors": the whole model of a run without FSDP.
std::string plain_model_file(int index);
/// "pytorch_model.bin", "pytorch_model_1.bin": Accelerate's older name for the same. We write the
/// model under this name in 16 bits, next to any other form (save_16bit_model).
std::string plain_bin_file(int index);
/// "pytorch_model_fsdp_rank3.bin", "pytorch_model_fsdp_1_rank3.bin": LOCAL_STATE_DICT.
std::string local_model_file(int index, int rank);
/// "scheduler.bin", "scheduler_1.bin"
std::string scheduler_file(int index);
inline constexpr const char* kScalerFile = "scaler.pt";
/// "random_states_3.pkl"
std::string random_states_file(int rank);
/// "custom_checkpoint_0.pkl"
std::string custom_file(int index);

/// Returns the path in a save folder of the model or the optimizer with number `index`, under any
/// of the names that Accelerate has used (pytorch_model_fsdp_0/, pytorch_model_0/,
/// pytorch_model_fsdp.bin, model.safetensors, pytorch_model.bin, DeepSpeed's pytorch_model/, …).
/// For LOCAL_STATE_DICT it is rank 0's file. DeepSpeed's optimizer is in the model's folder.
std::optional<InputPath> find_model(const InputPath& folder, int index);
std::optional<InputPath> find_optimizer(const InputPath& folder, int index);

/// True if a path in a save folder ("optimizer_0/.metadata") is one that we write. A folder with
/// any other file is never replaced.
bool is_ours(const std::string& path);

}  // namespace acc::checkpoint::accelerate
