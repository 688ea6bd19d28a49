#pragma once

#include <filesystem>
#include <optional>
#include <string>

/// Names in a folder of Accelerate's save_state (checkpoint-formats 4), old and new.
namespace acc::checkpoint::accelerate {

/// "pytorch_model_fsdp_0", "optimizer_0": folders of SHARDED_STATE_DICT.
std::string model_folder(int index);
std::string optimizer_folder(int index);
/// "pytorch_model_fsdp.bin", "pytorch_model_fsdp_1.bin"; "optimizer.bin": FULL_STATE_DICT.
std::string model_file(int index);
std::string optimizer_file(int index);
/// "model.safetensors", "model_1.safetensors": whole, of training without FSDP.
std::string plain_model_file(int index);
/// "pytorch_model.bin", "pytorch_model_1.bin": Accelerate's older name of the same; ours: the model
/// in 16 bits, beside any other form.
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

/// Where in a save folder model or optimizer number `index` is, under any of the names that
/// Accelerate has had (pytorch_model_fsdp_0/, pytorch_model_0/, pytorch_model_fsdp.bin,
/// model.safetensors, pytorch_model.bin, pytorch_model/ of DeepSpeed, …); of LOCAL_STATE_DICT rank
/// 0's file. DeepSpeed's optimizer is in the model's folder.
std::optional<std::filesystem::path> find_model(const std::filesystem::path& folder, int index);
std::optional<std::filesystem::path> find_optimizer(const std::filesystem::path& folder, int index);

/// Whether a path in a save folder ("optimizer_0/.metadata") is one that we write: a folder with
/// any other is never replaced.
bool is_ours(const std::string& path);

}  // namespace acc::checkpoint::accelerate
