// SPDX-License-Identifier: Apache-2.0
#include "cuda/graphs.hpp"

#include "cuda/cuda_check.hpp"

#include <acc/base/error.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace train_gpt::cuda {

bool graphs_from_environment() {
  const char* const variable = std::getenv("TRAIN_GPT_GRAPHS");
  const std::string_view word = variable == nullptr ? "0" : variable;
  if (word != "0" && word != "1") {
    throw acc::Error(acc::Errc::config,
                     "TRAIN_GPT_GRAPHS must be 0 or 1, got \"" + std::string(word) + "\"");
  }
  return word == "1";
}

// The capture is local to this thread, because other threads of the runtime ask for the state of
// events meanwhile (the NCCL watch), which would fail a global one.
Graph GraphCapture::capture(const std::function<void()>& issue) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the begin of a graph");
  std::string reason;
  try {
    issue();
  } catch (const acc::Error& error) {
    reason = error.what();
  }
  cudaGraph_t captured = nullptr;
  cudaError_t status = cudaStreamEndCapture(stream_, &captured);
  cudaGraphExec_t executable = nullptr;
  if (status == cudaSuccess && reason.empty()) {
    status = cudaGraphInstantiate(&executable, captured, 0);
  }
  if (captured != nullptr) {
    cudaGraphDestroy(captured);
  }
  if (status != cudaSuccess || !reason.empty()) {
    (void)cudaGetLastError();  // clears it: the work runs without a graph
    turn_off(reason.empty() ? cudaGetErrorString(status) : reason);
    return Graph();
  }
  return Graph(executable);
}

void GraphCapture::launch(const Graph& graph) {
  check(cudaGraphLaunch(graph.get(), stream_), "a graph");
}

void GraphCapture::turn_off(std::string_view reason) {
  if (on_) {
    std::fprintf(stderr, "train_gpt: CUDA graphs are off from here on: %s\n",
                 std::string(reason).c_str());
  }
  on_ = false;
}

}  // namespace train_gpt::cuda
