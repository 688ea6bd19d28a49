// SPDX-License-Identifier: Apache-2.0
#include "standin/cuda/capture.hpp"
#include "standin/cuda/devices.hpp"
#include "standin/cuda/streams.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

using namespace standin;

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};

namespace {

template <typename Body>
cudaError_t capture_call(const char* name, cudaStream_t handle, Body&& body) {
  return api_call(name, [&] {
    const StreamPtr stream = stream_of(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(stream);
  });
}

/// Returns the numbers of the nodes in a random order that their dependencies allow.
std::vector<std::size_t> random_order(const std::vector<Node>& nodes) {
  static std::mutex mutex;
  static std::mt19937_64 random(settings().seed);
  const std::lock_guard lock(mutex);
  std::vector<std::size_t> order;
  std::vector<bool> done(nodes.size(), false);
  while (order.size() < nodes.size()) {
    std::vector<std::size_t> ready;
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      if (!done[node] && std::ranges::all_of(nodes[node].after,
                                             [&](std::size_t before) { return done[before]; })) {
        ready.push_back(node);
      }
    }
    order.push_back(ready[random() % ready.size()]);
    done[order.back()] = true;
  }
  return order;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return capture_call("cudaStreamBeginCapture", handle,
                      [mode](const StreamPtr& stream) { return begin_capture(stream, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  return capture_call("cudaStreamEndCapture", handle, [graph](const StreamPtr& stream) {
    auto captured = std::make_unique<CUgraph_st>();
    const cudaError_t error = end_capture(stream, captured->nodes);
    if (error == cudaSuccess) {
      *graph = captured.release();
    }
    return error;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return capture_call("cudaStreamIsCapturing", handle, [status](const StreamPtr& stream) {
    *status = capture_status(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return api_call("cudaThreadExchangeStreamCaptureMode", [mode] {
    exchange_capture_mode(*mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return api_call("cudaGraphGetNodes", [&] {
    if (nodes != nullptr) {
      die("cudaGraphGetNodes of more than the number of nodes is not emulated");
    }
    *count = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  *executable = nullptr;
  return unsafe_api_call("cudaGraphInstantiate", [&] {
    if (graph == nullptr || flags != 0) {
      return cudaErrorInvalidValue;
    }
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return capture_call("cudaGraphLaunch", handle, [executable](const StreamPtr& stream) {
    if (executable == nullptr) {
      return cudaErrorInvalidValue;
    }
    if (capture_status(stream) != cudaStreamCaptureStatusNone) {
      die("a launch of a graph inside of a capture is not emulated");
    }
    if (const cudaError_t error = may_issue(stream); error != cudaSuccess) {
      return error;
    }
    count_call();
    for (const std::size_t node : random_order(executable->nodes)) {
      enqueue(stream, executable->nodes[node].step);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return api_call("cudaGraphDestroy", [graph] {
    delete graph;
    return cudaSuccess;
  });
}

// CUDA frees a graph that is running when it has finished. Queued work has its own copy here.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return api_call("cudaGraphExecDestroy", [executable] {
    delete executable;
    return cudaSuccess;
  });
}

}  // extern "C"
