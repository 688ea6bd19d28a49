// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcudnn on host memory, for tests without a GPU: the functions of the graph API
// that train_gpt calls. Everything that a caller describes is checked; a graph of other operations
// than attention's is refused, as by cuDNN's engines. Work is queued on the stand-in runtime's
// streams.

#include "standin/cuda/standin.hpp"
#include "standin/cudnn/descriptors.hpp"
#include "standin/cudnn/program.hpp"

#include <cstdlib>
#include <cstring>
#include <string_view>

using namespace standin::cudnn;

namespace {

constexpr std::int64_t kWorkspace = 4096;
constexpr std::int64_t kConfigs = 2;  // the first cannot be compiled

struct Handle {
  cudaStream_t stream = nullptr;
};

/// Element sizes of tensors in memory.
std::size_t size_of(int type) {
  return type == bfloat16 || type == float16 ? 2 : 4;
}

/// True if ACC_STANDIN_CUDNN_FAIL names this step: heuristics, plan or execute.
bool fails_at(std::string_view step) {
  const char* const named = std::getenv("ACC_STANDIN_CUDNN_FAIL");
  return named != nullptr && named == step;
}

// A configuration knows its graph by attribute 1 and its place among the proposals by attribute 2.
constexpr int kGraphOfConfig = 1;
constexpr int kPlaceOfConfig = 2;

Status propose(const Record& heuristics, std::int64_t capacity, std::int64_t* count, void** into) {
  if (fails_at("heuristics") || Program::compile(heuristics.record(201)) == nullptr) {
    *count = 0;
    return success;
  }
  *count = std::min(capacity, kConfigs);
  for (std::int64_t i = 0; i < *count; ++i) {
    const auto config = find(into[i]);
    if (config == nullptr || config->kind != 3) {
      return refuse(bad_param, "no configuration to fill");
    }
    config->values[kGraphOfConfig] = heuristics.values.at(201);
    Value place{.count = 1, .bytes = std::vector<std::byte>(sizeof i), .records = {}};
    std::memcpy(place.bytes.data(), &i, sizeof i);
    config->values[kPlaceOfConfig] = place;
    config->finalized = true;
  }
  return success;
}

bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

/// False for memory of the host that CUDA does not know, such as a number on the stack.
bool is_allocated(const void* data) {
  cudaPointerAttributes attributes{};
  return cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
         attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() {
  const char* const version = std::getenv("ACC_STANDIN_CUDNN_VERSION");
  return version == nullptr ? 91000 : static_cast<std::size_t>(std::atol(version));
}

const char* cudnnGetErrorString(int status) {
  switch (status) {
    case success: return "CUDNN_STATUS_SUCCESS";
    case bad_param: return "CUDNN_STATUS_BAD_PARAM";
    case not_supported: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}

void cudnnGetLastErrorString(char* message, std::size_t size) {
  const std::string& reason = last_reason();
  const std::size_t length = std::min(reason.size(), size - 1);
  std::memcpy(message, reason.data(), length);
  message[length] = '\0';
}

int cudnnCreate(void** handle) {
  *handle = new Handle;
  return success;
}
int cudnnDestroy(void* handle) {
  delete static_cast<Handle*>(handle);
  return success;
}
int cudnnSetStream(void* handle, cudaStream_t stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return success;
}

int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  return create(kind, descriptor);
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  return destroy(descriptor);
}
int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, std::int64_t count,
                             const void* elements) {
  return set_attribute(descriptor, attribute, type, count, elements);
}

int cudnnBackendFinalize(void* descriptor) {
  const auto record = find(descriptor);
  if (record != nullptr && record->kind == 5 && record->has(401) &&
      (fails_at("plan") || record->record(401).one<std::int64_t>(kPlaceOfConfig) == 0)) {
    return refuse(not_supported, "this engine cannot run the graph");
  }
  if (record != nullptr && record->kind == 4 && record->one<int>(200) != 3) {
    return refuse(not_supported, "another mode of heuristics than A");
  }
  return finalize(descriptor);
}

int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, std::int64_t capacity,
                             std::int64_t* count, void* elements) {
  const auto record = find(descriptor);
  if (record == nullptr || !record->finalized || capacity < 1) {
    return refuse(bad_param, "a descriptor is not finalized, or there is no place for the result");
  }
  if (record->kind == 4 && attribute == 202 && type == 15) {
    return propose(*record, capacity, count, static_cast<void**>(elements));
  }
  if (record->kind == 5 && attribute == 402 && type == 3) {
    *count = 1;
    *static_cast<std::int64_t*>(elements) = kWorkspace;
    return success;
  }
  return refuse(not_supported, "an attribute that cannot be read");
}

int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  const auto plan_record = find(plan);
  const auto pack_record = find(pack);
  if (handle == nullptr || plan_record == nullptr || !plan_record->finalized ||
      pack_record == nullptr || !pack_record->finalized || pack_record->kind != 16) {
    return refuse(bad_param, "an argument is null or not finalized");
  }
  if (fails_at("execute")) {
    return refuse(execution_failed, "a failure that the environment asked for");
  }
  const auto program = Program::compile(plan_record->record(401).record(kGraphOfConfig));
  const auto ids = pack_record->all<std::int64_t>(1000);
  const auto pointers = pack_record->all<void*>(1001);
  std::map<std::int64_t, void*> memory;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (pointers[i] == nullptr || !memory.emplace(ids[i], pointers[i]).second) {
      return refuse(bad_param, "a pointer is null or an id is bound twice");
    }
  }
  // Numbers are read at the call, memory when the work runs.
  auto numbers = std::make_shared<std::map<std::int64_t, float>>();
  std::size_t needed = 0;
  for (const auto& [id, tensor] : program->tensors()) {
    if (tensor.is_virtual) {
      continue;
    }
    ++needed;
    const auto bound = memory.find(id);
    if (bound == memory.end()) {
      return refuse(bad_param, "tensor " + std::to_string(id) + " has no memory");
    }
    if (tensor.is_by_value) {
      bound->second = &numbers->emplace(id, *static_cast<float*>(bound->second)).first->second;
    } else if (!is_aligned(bound->second) || !is_allocated(bound->second)) {
      return refuse(bad_param, "tensor " + std::to_string(id) + " is not aligned memory of CUDA");
    } else {
      standin::check_range(
          bound->second, static_cast<std::size_t>(tensor.extent()) * size_of(tensor.type), "cuDNN");
    }
  }
  void* const workspace = pack_record->one<void*>(1003);
  if (needed != memory.size() || workspace == nullptr) {
    return refuse(bad_param, "memory for tensors that the graph has not, or no workspace");
  }
  standin::check_range(workspace, kWorkspace, "cuDNN's workspace");
  const cudaError_t queued = standin::enqueue(static_cast<Handle*>(handle)->stream, [=] {
    std::memset(workspace, 0xff, kWorkspace);
    program->run(memory);
    (void)numbers;  // kept alive for the pointers in `memory`
  });
  return queued == cudaSuccess ? success : refuse(execution_failed, "the stream is unknown");
}

}  // extern "C"
