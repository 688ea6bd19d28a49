// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "cuda/cudnn_attention.hpp"

#include <cudnn.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

// The real libcudnn, as far as it works without a driver, against what the program and the stand-in
// assume.
using namespace train_gpt::cuda::cudnn;
using train_gpt::AttentionShape;

namespace {

Library open_cudnn(const char* path) {
  ::setenv("ACC_CUDNN_LIBRARY", path, 1);
  return {};
}

/// The real library. Its parts load only with a driver's library, or one with the same functions.
Library open_real_cudnn() {
  REQUIRE(dlopen(ACC_DRIVER_SYMBOLS, RTLD_NOW | RTLD_GLOBAL) != nullptr);
  return open_cudnn(ACC_REAL_CUDNN);
}

constexpr bool same(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

// clang-format off
static_assert(same(Status::success, CUDNN_STATUS_SUCCESS));
static_assert(same(Status::bad_param, CUDNN_STATUS_BAD_PARAM));
static_assert(same(Status::not_supported, CUDNN_STATUS_NOT_SUPPORTED));
static_assert(same(DataType::float32, CUDNN_DATA_FLOAT));
static_assert(same(DataType::float16, CUDNN_DATA_HALF));
static_assert(same(DataType::int32, CUDNN_DATA_INT32));
static_assert(same(DataType::bfloat16, CUDNN_DATA_BFLOAT16));
static_assert(same(DataType::boolean, CUDNN_DATA_BOOLEAN));
static_assert(same(Kind::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(same(Kind::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(same(Kind::engine_heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(same(Kind::plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(same(Kind::pointwise_operation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(same(Kind::graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(same(Kind::variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(same(Kind::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(same(Kind::matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR));
static_assert(same(Kind::matmul_operation, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
static_assert(same(Kind::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
static_assert(same(Kind::reduction_operation, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
static_assert(same(Kind::reshape_operation, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
static_assert(same(Kind::device_properties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
static_assert(same(Attribute::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE));
static_assert(same(Attribute::pointwise_math_type, CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(same(Attribute::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS));
static_assert(same(Attribute::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(same(Attribute::heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(same(Attribute::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(same(Attribute::heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP));
static_assert(same(Attribute::plan_handle, 400));  // deprecated there, and still required
static_assert(same(Attribute::plan_engine_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(same(Attribute::plan_workspace_size, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(same(Attribute::plan_device, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP));
static_assert(same(Attribute::pointwise_operation_mode, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(same(Attribute::pointwise_operation_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(same(Attribute::pointwise_operation_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(same(Attribute::pointwise_operation_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(same(Attribute::pointwise_operation_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(same(Attribute::graph_handle, 800));  // as plan_handle
static_assert(same(Attribute::graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(same(Attribute::tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(same(Attribute::tensor_data_type, CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(same(Attribute::tensor_dimensions, CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(same(Attribute::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES));
static_assert(same(Attribute::tensor_unique_id, CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(same(Attribute::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(same(Attribute::tensor_is_by_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE));
static_assert(same(Attribute::pack_unique_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(same(Attribute::pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(same(Attribute::pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(same(Attribute::matmul_math_type, CUDNN_ATTR_MATMUL_COMP_TYPE));
static_assert(same(Attribute::matmul_operation_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
static_assert(same(Attribute::matmul_operation_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
static_assert(same(Attribute::matmul_operation_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
static_assert(same(Attribute::matmul_operation_mode, CUDNN_ATTR_OPERATION_MATMUL_DESC));
static_assert(same(Attribute::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR));
static_assert(same(Attribute::reduction_math_type, CUDNN_ATTR_REDUCTION_COMP_TYPE));
static_assert(same(Attribute::reduction_operation_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
static_assert(same(Attribute::reduction_operation_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
static_assert(same(Attribute::reduction_operation_mode, CUDNN_ATTR_OPERATION_REDUCTION_DESC));
static_assert(same(Attribute::reshape_operation_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
static_assert(same(Attribute::reshape_operation_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
static_assert(same(Attribute::device_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION));
static_assert(same(ValueType::handle, CUDNN_TYPE_HANDLE));
static_assert(same(ValueType::data_type, CUDNN_TYPE_DATA_TYPE));
static_assert(same(ValueType::boolean, CUDNN_TYPE_BOOLEAN));
static_assert(same(ValueType::int64, CUDNN_TYPE_INT64));
static_assert(same(ValueType::pointer, CUDNN_TYPE_VOID_PTR));
static_assert(same(ValueType::heuristics_mode, CUDNN_TYPE_HEUR_MODE));
static_assert(same(ValueType::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE));
static_assert(same(ValueType::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(same(ValueType::reduction_operator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE));
static_assert(same(ValueType::character, CUDNN_TYPE_CHAR));
static_assert(same(PointwiseMode::add, CUDNN_POINTWISE_ADD));
static_assert(same(PointwiseMode::mul, CUDNN_POINTWISE_MUL));
static_assert(same(PointwiseMode::div, CUDNN_POINTWISE_DIV));
static_assert(same(PointwiseMode::sub, CUDNN_POINTWISE_SUB));
static_assert(same(PointwiseMode::exp, CUDNN_POINTWISE_EXP));
static_assert(same(PointwiseMode::log, CUDNN_POINTWISE_LOG));
static_assert(same(PointwiseMode::identity, CUDNN_POINTWISE_IDENTITY));
static_assert(same(PointwiseMode::greater_equal, CUDNN_POINTWISE_CMP_GE));
static_assert(same(PointwiseMode::index, CUDNN_POINTWISE_GEN_INDEX));
static_assert(same(PointwiseMode::select, CUDNN_POINTWISE_BINARY_SELECT));
static_assert(same(ReductionOperator::add, CUDNN_REDUCE_TENSOR_ADD));
static_assert(same(ReductionOperator::max, CUDNN_REDUCE_TENSOR_MAX));
static_assert(same(HeuristicsMode::a, CUDNN_HEUR_MODE_A));
// clang-format on

struct Setting {
  Kind kind;
  Attribute attribute;
};

// Attributes whose elements are no descriptors.
constexpr Setting kSettings[] = {
    {Kind::pointwise, Attribute::pointwise_mode},
    {Kind::pointwise, Attribute::pointwise_math_type},
    {Kind::pointwise, Attribute::pointwise_axis},
    {Kind::engine_heuristics, Attribute::heuristics_mode},
    {Kind::tensor, Attribute::tensor_alignment},
    {Kind::tensor, Attribute::tensor_data_type},
    {Kind::tensor, Attribute::tensor_dimensions},
    {Kind::tensor, Attribute::tensor_strides},
    {Kind::tensor, Attribute::tensor_unique_id},
    {Kind::tensor, Attribute::tensor_is_virtual},
    {Kind::tensor, Attribute::tensor_is_by_value},
    {Kind::matmul, Attribute::matmul_math_type},
    {Kind::reduction, Attribute::reduction_operator},
    {Kind::reduction, Attribute::reduction_math_type},
    {Kind::variant_pack, Attribute::pack_unique_ids},
    {Kind::variant_pack, Attribute::pack_pointers},
    {Kind::variant_pack, Attribute::pack_workspace},
};
constexpr std::array kTypes = {
    ValueType::data_type,         ValueType::boolean,         ValueType::int64,
    ValueType::pointer,           ValueType::heuristics_mode, ValueType::pointwise_mode,
    ValueType::reduction_operator};

/// Returns, for each setting, the types with which the library takes one element of zeros.
std::vector<std::string> taken(const Library& api) {
  std::vector<std::string> result;
  const std::array<std::int64_t, 2> zeros{};
  for (const Setting& setting : kSettings) {
    std::string line = std::to_string(static_cast<int>(setting.attribute)) + ":";
    for (const ValueType type : kTypes) {
      const OwnedDescriptor descriptor(api, setting.kind);
      if (api.BackendSetAttribute(descriptor.get(), setting.attribute, type, 1, zeros.data()) ==
          Status::success) {
        line += " " + std::to_string(static_cast<int>(type));
      }
    }
    result.push_back(line);
  }
  return result;
}

/// Says for some kinds of descriptors, which need attributes, if they can be finalized without any.
/// A plan is left out: cuDNN 9.28 accesses a null pointer then.
std::vector<std::string> finalized_empty(const Library& api) {
  std::vector<std::string> result;
  for (const Kind kind :
       {Kind::engine_heuristics, Kind::graph, Kind::tensor, Kind::matmul_operation,
        Kind::reduction_operation, Kind::reshape_operation}) {
    const OwnedDescriptor descriptor(api, kind);
    const bool done = api.BackendFinalize(descriptor.get()) == Status::success;
    result.push_back(std::to_string(static_cast<int>(kind)) + (done ? ": yes" : ": no"));
  }
  return result;
}

/// Returns the description of a GPU in the form in which cuDNN itself writes one.
std::string describe_gpu(int capability, int processors, int shared_memory) {
  return R"({"version":1,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
         R"("regsPerBlock":65536,"smCountOrigin":0,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
         R"("reservedSharedMemoryPerBlock":1024,"oversizedSharedMemoryPerBlock":0,)"
         R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
         R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
         R"("totalGlobalMem":85029158912,"smClockRateKHz":1980000,"memClockRateKHz":2619000,)"
         R"("memoryBusWidth":5120,"l2CacheSize":52428800,"cudaDeviceId":0,"driverVer":13000,)"
         R"("deviceName":"GPU","deviceVer":)" +
         std::to_string(capability) + R"(,"multiProcessorCount":)" + std::to_string(processors) +
         R"(,"maxSharedMemoryPerBlockOptin":)" + std::to_string(shared_memory) + "}";
}

}  // namespace

TEST_CASE("libcudnn takes the attributes of the program, with the types that the stand-in takes") {
  const Library real = open_real_cudnn();
  const Library standin = open_cudnn(ACC_STANDIN_CUDNN);
  const auto compare = [&](const auto& lines_of) {
    const std::vector<std::string> expected = lines_of(real);
    const std::vector<std::string> found = lines_of(standin);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(found[i] == expected[i]);
    }
  };
  compare(taken);
  compare(finalized_empty);
}

TEST_CASE("libcudnn compiles the graphs of attention for A100 and H100, and not for V100") {
  const Library api = open_real_cudnn();
  const auto compile = [&](const std::string& gpu, const AttentionGraph& graph) {
    OwnedDescriptor properties(api, Kind::device_properties);
    properties.set(Attribute::device_json, ValueType::character, std::span<const char>(gpu));
    properties.finalize("describing a GPU");
    const Target target{.properties = properties.get()};
    forward_plan(api, graph, target);
    return backward_plan(api, graph, target).workspace_nbytes;
  };
  const std::string a100 = describe_gpu(800, 108, 166912);
  const std::string h100 = describe_gpu(900, 132, 232448);
  for (const AttentionShape& shape :
       {AttentionShape{.batch = 8, .time = 1024, .heads = 12, .head_dim = 64},
        AttentionShape{.batch = 4, .time = 2000, .heads = 16, .head_dim = 128}}) {
    CHECK_NOTHROW(compile(h100, {shape, DataType::float16, false}));
    const AttentionGraph fast{shape, DataType::bfloat16, false};
    const AttentionGraph deterministic{shape, DataType::bfloat16, true};
    CHECK(compile(h100, fast) < 1 << 20);
    // The gradients of all scores in 16 bits.
    CHECK(compile(h100, deterministic) >= 2 * shape.batch * shape.heads * shape.time * shape.time);
    CHECK_NOTHROW(compile(a100, fast));
  }
  CHECK_THROWS_WITH_AS(
      compile(describe_gpu(700, 80, 98304),
              {{.batch = 1, .time = 64, .heads = 1, .head_dim = 64}, DataType::float16, false}),
      "cuDNN proposes no engine", acc::Error);
}
