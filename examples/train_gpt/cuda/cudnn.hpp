// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

/// The part of cuDNN 9's graph API that this program uses. It is declared here, because cuDNN's
/// headers come only with its library, which has 500 MB and is needed only where a GPU is. Names
/// and numbers are those of cudnn_graph.h, which cuDNN keeps within a major version.
namespace train_gpt::cuda::cudnn {

enum class Status : int { success = 0, bad_param = 2000, not_supported = 3000 };
enum class DataType : int { float32 = 0, float16 = 2, int32 = 4, bfloat16 = 9, boolean = 11 };

// clang-format off
/// Kinds of descriptors: CUDNN_BACKEND_*_DESCRIPTOR.
enum class Kind : int {
  pointwise = 0, engine_config = 3, engine_heuristics = 4, plan = 5,
  pointwise_operation = 13, graph = 15, variant_pack = 16, tensor = 17, matmul = 18,
  matmul_operation = 19, reduction = 21, reduction_operation = 22, reshape_operation = 31,
  device_properties = 38
};

/// Attributes of descriptors: CUDNN_ATTR_*.
enum class Attribute : int {
  pointwise_mode = 0, pointwise_math_type = 1, pointwise_axis = 9,
  heuristics_mode = 200, heuristics_graph = 201, heuristics_results = 202, heuristics_device = 204,
  plan_handle = 400, plan_engine_config = 401, plan_workspace_size = 402, plan_device = 407,
  pointwise_operation_mode = 750, pointwise_operation_x = 751, pointwise_operation_b = 752,
  pointwise_operation_y = 753, pointwise_operation_t = 758,
  graph_handle = 800, graph_operations = 801,
  tensor_alignment = 900, tensor_data_type = 901, tensor_dimensions = 902, tensor_strides = 903,
  tensor_unique_id = 906, tensor_is_virtual = 907, tensor_is_by_value = 908,
  pack_unique_ids = 1000, pack_pointers = 1001, pack_workspace = 1003,
  matmul_math_type = 1500,
  matmul_operation_a = 1520, matmul_operation_b = 1521, matmul_operation_c = 1522,
  matmul_operation_mode = 1523,
  reduction_operator = 1600, reduction_math_type = 1601,
  reduction_operation_x = 1610, reduction_operation_y = 1611, reduction_operation_mode = 1612,
  reshape_operation_x = 2200, reshape_operation_y = 2201,
  device_json = 2702
};

/// Types of an attribute's elements: CUDNN_TYPE_*.
enum class ValueType : int {
  handle = 0, data_type = 1, boolean = 2, int64 = 3, pointer = 6, heuristics_mode = 8,
  pointwise_mode = 14, descriptor = 15, reduction_operator = 18,
  character = 24
};

enum class PointwiseMode : int {
  add = 0, mul = 1, div = 6, sub = 9, exp = 13, log = 15, identity = 21, greater_equal = 303,
  index = 501, select = 601
};
// clang-format on
enum class ReductionOperator : int { add = 0, max = 3 };
enum class HeuristicsMode : int { a = 3 };

using Handle = struct cudnnContext*;
using Descriptor = void*;

// clang-format off
#define TRAIN_GPT_CUDNN_FUNCTIONS(F) \
  F(GetVersion, std::size_t()) \
  F(GetErrorString, const char*(Status)) \
  F(GetLastErrorString, void(char* message, std::size_t size)) \
  F(Create, Status(Handle*)) \
  F(Destroy, Status(Handle)) \
  F(SetStream, Status(Handle, cudaStream_t)) \
  F(BackendCreateDescriptor, Status(Kind, Descriptor*)) \
  F(BackendDestroyDescriptor, Status(Descriptor)) \
  F(BackendSetAttribute, \
    Status(Descriptor, Attribute, ValueType, std::int64_t count, const void* elements)) \
  F(BackendGetAttribute, Status(Descriptor, Attribute, ValueType, std::int64_t capacity, \
                                std::int64_t* count, void* elements)) \
  F(BackendFinalize, Status(Descriptor)) \
  F(BackendExecute, Status(Handle, Descriptor plan, Descriptor variant_pack))
// clang-format on

/// Oldest version whose attention clears its own sums of gradients (cuDNN release 9.6).
constexpr std::size_t kOldest = 90600;

/// libcudnn, opened at run time. Never closed.
struct Library {
#define TRAIN_GPT_DECLARE(name, type) std::type_identity_t<type>* name = nullptr;
  TRAIN_GPT_CUDNN_FUNCTIONS(TRAIN_GPT_DECLARE)
#undef TRAIN_GPT_DECLARE
  std::string path;

  /// Searches the library in the places of acc::library_candidates; ACC_CUDNN_LIBRARY can name it.
  /// Throws Error(device) with the loader's message for each place, and if it is older than
  /// kOldest.
  Library();

  /// Throws Error(device) with cuDNN's reason if a call failed. what: operation, for the message.
  void check(Status status, const char* what) const;
  /// Returns the version as text: 9.10.2
  [[nodiscard]] std::string version() const;
};

}  // namespace train_gpt::cuda::cudnn
