// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn_graph.hpp"

#include <acc/base/error.hpp>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace train_gpt::cuda::cudnn {

OwnedDescriptor::OwnedDescriptor(const Library& api, Kind kind) : api_(&api) {
  api.check(api.BackendCreateDescriptor(kind, &handle_), "creating a descriptor");
}

OwnedDescriptor::~OwnedDescriptor() {
  if (handle_ != nullptr) {
    api_->BackendDestroyDescriptor(handle_);
  }
}

void OwnedDescriptor::set(Attribute attribute, ValueType type, std::int64_t count,
                          const void* values) {
  const Status status = api_->BackendSetAttribute(handle_, attribute, type, count, values);
  if (status != Status::success) {
    api_->check(status,
                ("setting attribute " + std::to_string(static_cast<int>(attribute))).c_str());
  }
}

void OwnedDescriptor::finalize(const char* what) {
  api_->check(api_->BackendFinalize(handle_), what);
}

Layout Layout::transposed() const {
  return {{dims[0], dims[1], dims[3], dims[2]}, {strides[0], strides[1], strides[3], strides[2]}};
}

Layout Layout::packed(const Dims& dims) {
  return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}};
}

OwnedDescriptor& Graph::tensor(std::int64_t id, const Layout& layout, DataType type) {
  constexpr std::int64_t kAlignment = 16;
  OwnedDescriptor& made = tensors_.emplace_back(api_, Kind::tensor);
  made.set(Attribute::tensor_unique_id, ValueType::int64, id);
  made.set(Attribute::tensor_data_type, ValueType::data_type, type);
  made.set(Attribute::tensor_dimensions, ValueType::int64,
           std::span<const std::int64_t>(layout.dims));
  made.set(Attribute::tensor_strides, ValueType::int64,
           std::span<const std::int64_t>(layout.strides));
  made.set(Attribute::tensor_alignment, ValueType::int64, kAlignment);
  return made;
}

Tensor Graph::memory(std::int64_t id, const Layout& layout, DataType type) {
  tensor(id, layout, type).finalize("describing a tensor");
  return {tensors_.size() - 1};
}

Tensor Graph::scalar(std::int64_t id) {
  OwnedDescriptor& made = tensor(id, Layout::packed({1, 1, 1, 1}), DataType::float32);
  made.set(Attribute::tensor_is_by_value, ValueType::boolean, true);
  made.finalize("describing a number");
  return {tensors_.size() - 1};
}

Tensor Graph::temporary(const Layout& layout, DataType type) {
  OwnedDescriptor& made = tensor(next_temporary_++, layout, type);
  made.set(Attribute::tensor_is_virtual, ValueType::boolean, true);
  made.finalize("describing a temporary tensor");
  return {tensors_.size() - 1};
}

OwnedDescriptor& Graph::operation(Kind kind) {
  return operations_.emplace_back(api_, kind);
}

void Graph::matmul(Tensor a, Tensor b, Tensor c) {
  OwnedDescriptor& mode = modes_.emplace_back(api_, Kind::matmul);
  mode.set(Attribute::matmul_math_type, ValueType::data_type, DataType::float32);
  mode.finalize("describing a matrix product");
  OwnedDescriptor& made = operation(Kind::matmul_operation);
  made.set(Attribute::matmul_operation_a, of(a));
  made.set(Attribute::matmul_operation_b, of(b));
  made.set(Attribute::matmul_operation_c, of(c));
  made.set(Attribute::matmul_operation_mode, mode);
  made.finalize("a matrix product");
}

void Graph::add_pointwise(PointwiseMode mode, DataType math, std::int64_t axis,
                          std::initializer_list<std::pair<Attribute, Tensor>> tensors) {
  OwnedDescriptor& described = modes_.emplace_back(api_, Kind::pointwise);
  described.set(Attribute::pointwise_mode, ValueType::pointwise_mode, mode);
  described.set(Attribute::pointwise_math_type, ValueType::data_type, math);
  if (mode == PointwiseMode::index) {
    described.set(Attribute::pointwise_axis, ValueType::int64, axis);
  }
  described.finalize("describing an element-wise operation");
  OwnedDescriptor& made = operation(Kind::pointwise_operation);
  made.set(Attribute::pointwise_operation_mode, described);
  for (const auto& [attribute, tensor] : tensors) {
    made.set(attribute, of(tensor));
  }
  made.finalize("an element-wise operation");
}

void Graph::pointwise(PointwiseMode mode, Tensor x, Tensor y) {
  add_pointwise(mode, DataType::float32, 0,
                {{Attribute::pointwise_operation_x, x}, {Attribute::pointwise_operation_y, y}});
}

void Graph::pointwise(PointwiseMode mode, Tensor x, Tensor b, Tensor y) {
  add_pointwise(mode, DataType::float32, 0,
                {{Attribute::pointwise_operation_x, x},
                 {Attribute::pointwise_operation_b, b},
                 {Attribute::pointwise_operation_y, y}});
}

void Graph::greater_equal(Tensor x, Tensor b, Tensor y) {
  add_pointwise(PointwiseMode::greater_equal, DataType::boolean, 0,
                {{Attribute::pointwise_operation_x, x},
                 {Attribute::pointwise_operation_b, b},
                 {Attribute::pointwise_operation_y, y}});
}

void Graph::index(Tensor x, std::int64_t axis, Tensor y) {
  add_pointwise(PointwiseMode::index, DataType::float32, axis,
                {{Attribute::pointwise_operation_x, x}, {Attribute::pointwise_operation_y, y}});
}

void Graph::select(Tensor x, Tensor b, Tensor t, Tensor y) {
  add_pointwise(PointwiseMode::select, DataType::float32, 0,
                {{Attribute::pointwise_operation_x, x},
                 {Attribute::pointwise_operation_b, b},
                 {Attribute::pointwise_operation_t, t},
                 {Attribute::pointwise_operation_y, y}});
}

void Graph::reduce(ReductionOperator mode, Tensor x, Tensor y) {
  OwnedDescriptor& described = modes_.emplace_back(api_, Kind::reduction);
  described.set(Attribute::reduction_operator, ValueType::reduction_operator, mode);
  described.set(Attribute::reduction_math_type, ValueType::data_type, DataType::float32);
  described.finalize("describing a reduction");
  OwnedDescriptor& made = operation(Kind::reduction_operation);
  made.set(Attribute::reduction_operation_x, of(x));
  made.set(Attribute::reduction_operation_y, of(y));
  made.set(Attribute::reduction_operation_mode, described);
  made.finalize("a reduction");
}

void Graph::reshape(Tensor x, Tensor y) {
  OwnedDescriptor& made = operation(Kind::reshape_operation);
  made.set(Attribute::reshape_operation_x, of(x));
  made.set(Attribute::reshape_operation_y, of(y));
  made.finalize("a transposition");
}

Plan Graph::plan(const Target& target) && {
  OwnedDescriptor graph(api_, Kind::graph);
  std::vector<Descriptor> operations;
  for (const OwnedDescriptor& made : operations_) {
    operations.push_back(made.get());
  }
  graph.set(Attribute::graph_operations, ValueType::descriptor,
            std::span<const Descriptor>(operations));
  if (target.handle != nullptr) {
    graph.set(Attribute::graph_handle, ValueType::handle, target.handle);
  }
  graph.finalize("a graph");

  OwnedDescriptor heuristics(api_, Kind::engine_heuristics);
  heuristics.set(Attribute::heuristics_graph, graph);
  heuristics.set(Attribute::heuristics_mode, ValueType::heuristics_mode, HeuristicsMode::a);
  if (target.properties != nullptr) {
    heuristics.set(Attribute::heuristics_device, ValueType::descriptor, target.properties);
  }
  heuristics.finalize("choosing engines");
  constexpr std::int64_t kMostConfigs = 8;
  std::vector<OwnedDescriptor> configs;
  std::vector<Descriptor> handles;
  for (std::int64_t i = 0; i < kMostConfigs; ++i) {
    handles.push_back(configs.emplace_back(api_, Kind::engine_config).get());
  }
  std::int64_t count = 0;
  api_.check(api_.BackendGetAttribute(heuristics.get(), Attribute::heuristics_results,
                                      ValueType::descriptor, kMostConfigs, &count, handles.data()),
             "reading the proposed engines");
  std::string reason = "cuDNN proposes no engine";
  for (std::int64_t i = 0; i < std::min(count, kMostConfigs); ++i) {
    const OwnedDescriptor& config = configs[static_cast<std::size_t>(i)];
    try {
      OwnedDescriptor plan(api_, Kind::plan);
      if (target.handle != nullptr) {
        plan.set(Attribute::plan_handle, ValueType::handle, target.handle);
      }
      if (target.properties != nullptr) {
        plan.set(Attribute::plan_device, ValueType::descriptor, target.properties);
      }
      plan.set(Attribute::plan_engine_config, config);
      plan.finalize("compiling a graph");
      std::int64_t nbytes = 0;
      std::int64_t sizes = 0;
      api_.check(api_.BackendGetAttribute(plan.get(), Attribute::plan_workspace_size,
                                          ValueType::int64, 1, &sizes, &nbytes),
                 "reading a plan's workspace size");
      for (auto* parts : {&modes_, &operations_, &configs}) {
        std::move(parts->begin(), parts->end(), std::back_inserter(tensors_));
      }
      tensors_.push_back(std::move(graph));
      return {std::move(tensors_), std::move(plan), nbytes};
    } catch (const acc::Error& error) {
      reason = error.what();  // the next engine may be able to run the graph
    }
  }
  throw acc::Error(acc::Errc::device, reason);
}

void execute(const Library& api, Handle handle, const Plan& plan, std::span<const Binding> bindings,
             void* workspace) {
  std::vector<std::int64_t> ids;
  std::vector<const void*> pointers;
  for (const Binding& binding : bindings) {
    ids.push_back(binding.id);
    pointers.push_back(binding.data);
  }
  OwnedDescriptor pack(api, Kind::variant_pack);
  pack.set(Attribute::pack_unique_ids, ValueType::int64, std::span<const std::int64_t>(ids));
  pack.set(Attribute::pack_pointers, ValueType::pointer, std::span<const void* const>(pointers));
  pack.set(Attribute::pack_workspace, ValueType::pointer, workspace);
  pack.finalize("binding memory");
  api.check(api.BackendExecute(handle, plan.descriptor.get(), pack.get()), "attention");
}

}  // namespace train_gpt::cuda::cudnn
