// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/tensor/dtype.hpp"
#include "pickle/reader.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace acc::checkpoint::pickle {
namespace {

using Global = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kDcp = "torch.distributed.checkpoint.metadata";

/// Globals found in files that torch 2.13, Accelerate 1.15 and DeepSpeed 0.19 wrote, and the names
/// that other versions of Python and numpy use for the same objects. Adding a global is safe only
/// if its object is plain data: readers interpret it, nothing calls it.
constexpr auto kGlobals = std::to_array<Global>({
    {"_codecs", "encode"},
    {"collections", "Counter"},
    {"collections", "OrderedDict"},
    {"collections", "defaultdict"},
    {"collections", "deque"},
    {"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"},
    {"deepspeed.runtime.fp16.loss_scaler", "LossScaler"},
    {"deepspeed.runtime.zero.config", "ZeroStageEnum"},
    {"deepspeed.utils.tensor_fragment", "fragment_address"},
    {"numpy", "dtype"},
    {"numpy", "ndarray"},
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy._core.multiarray", "scalar"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy.core.multiarray", "scalar"},
    {"torch", "Size"},
    {"torch", "Tensor"},
    {"torch", "UntypedStorage"},
    {"torch", "device"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch._utils", "_rebuild_parameter_with_state"},
    {"torch._utils", "_rebuild_tensor"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {kDcp, "BytesStorageMetadata"},
    {kDcp, "ChunkStorageMetadata"},
    {kDcp, "Metadata"},
    {kDcp, "MetadataIndex"},
    {kDcp, "StorageMeta"},
    {kDcp, "TensorProperties"},
    {kDcp, "TensorStorageMetadata"},
    {kDcp, "_MEM_FORMAT_ENCODING"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.serialization", "_get_layout"},
    {"torch.storage", "UntypedStorage"},
});

/// Built-in types whose objects are plain data, for Python 3 ("builtins") and for protocol 2 of
/// Python 2 ("__builtin__").
constexpr auto kBuiltins =
    std::to_array<std::string_view>({"bool", "bytearray", "bytes", "complex", "dict", "float",
                                     "frozenset", "int", "list", "set", "str", "tuple"});
/// Path classes of pathlib. Python 3.13 pickles them as pathlib._local.
constexpr auto kPaths = std::to_array<std::string_view>(
    {"PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"});

struct Enumerator {
  Global type;
  std::string_view name;
  std::int64_t number = 0;
};
constexpr Global kZeroStage = {"deepspeed.runtime.zero.config", "ZeroStageEnum"};
constexpr Global kMemoryFormat = {kDcp, "_MEM_FORMAT_ENCODING"};
constexpr auto kEnumerators = std::to_array<Enumerator>({
    {kZeroStage, "disabled", 0},
    {kZeroStage, "optimizer_states", 1},
    {kZeroStage, "gradients", 2},
    {kZeroStage, "weights", 3},
    {kMemoryFormat, "TORCH_CONTIGUOUS_FORMAT", 0},
    {kMemoryFormat, "TORCH_CHANNELS_LAST", 1},
    {kMemoryFormat, "TORCH_PRESERVE_FORMAT", 2},
});

template <typename List, typename T>
bool contains(const List& list, const T& what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

}  // namespace

bool is_known_global(std::string_view module, std::string_view name) {
  if (module == "builtins" || module == "__builtin__") {
    return contains(kBuiltins, name);
  }
  if (module == "pathlib" || module == "pathlib._local") {
    return contains(kPaths, name);
  }
  if (module == "torch" && (dtype_of_torch(name) || dtype_of_torch_storage(name))) {
    return true;
  }
  return contains(kGlobals, Global(module, name));
}

std::optional<std::int64_t> enumerator(std::string_view module, std::string_view type,
                                       std::string_view name) {
  for (const Enumerator& each : kEnumerators) {
    if (each.type == Global(module, type) && each.name == name) {
      return each.number;
    }
  }
  return std::nullopt;
}

}  // namespace acc::checkpoint::pickle
