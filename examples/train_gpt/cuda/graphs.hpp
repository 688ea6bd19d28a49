// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace train_gpt::cuda {

/// An executable CUDA graph. Empty before it is captured.
class Graph {
 public:
  Graph() = default;
  explicit Graph(cudaGraphExec_t executable) : executable_(executable) {}
  [[nodiscard]] cudaGraphExec_t get() const { return executable_.get(); }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t executable) const { cudaGraphExecDestroy(executable); }
  };
  std::unique_ptr<CUgraphExec_st, Destroy> executable_;
};

/// Returns true if TRAIN_GPT_GRAPHS is 1, false if it is 0 or unset. Throws Error(config).
bool graphs_from_environment();

/// Captures work of one stream as CUDA graphs. The first capture that fails prints its reason and
/// turns graphs off.
class GraphCapture {
 public:
  GraphCapture(cudaStream_t stream, bool on) : stream_(stream), on_(on) {}

  [[nodiscard]] bool on() const { return on_; }
  /// Returns the work that `issue` queues on the stream as a graph, and runs nothing. Empty if that
  /// failed. issue: must only queue work, and may throw.
  Graph capture(const std::function<void()>& issue);
  void launch(const Graph& graph);
  void turn_off(std::string_view reason);

 private:
  cudaStream_t stream_;
  bool on_;
};

/// Work that is queued again and again, as a graph when it has been queued with the same arguments
/// before. The first time runs without a graph, because that is when libraries choose their
/// algorithms. Arguments: everything that the queued work depends on; equality comparable.
template <class Arguments>
class Graphed {
 public:
  /// Queues what `issue` queues for these arguments.
  void run(GraphCapture& graphs, const Arguments& arguments, const std::function<void()>& issue) {
    Entry* entry = graphs.on() ? find(arguments) : nullptr;
    if (entry == nullptr) {
      issue();
      if (graphs.on()) {
        remember(graphs, arguments);
      }
      return;
    }
    misses_ = 0;
    if (entry->graph.get() == nullptr) {
      entry->graph = graphs.capture(issue);
      if (entry->graph.get() == nullptr) {
        issue();
        return;
      }
    }
    graphs.launch(entry->graph);
  }

 private:
  /// Enough for the buffers that take turns in holding a unit's weights and gradients.
  static constexpr std::size_t kMostEntries = 8;
  static constexpr std::size_t kMostMisses = 4 * kMostEntries;

  struct Entry {
    Arguments arguments;
    Graph graph;
  };

  /// Moves the entry to the end, where the one used last is.
  Entry* find(const Arguments& arguments) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.arguments == arguments;
    });
    if (found == entries_.end()) {
      return nullptr;
    }
    std::rotate(found, found + 1, entries_.end());
    return &entries_.back();
  }

  void remember(GraphCapture& graphs, const Arguments& arguments) {
    if (++misses_ > kMostMisses) {
      graphs.turn_off("the addresses of weights and gradients change in every step");
      entries_.clear();
      return;
    }
    if (entries_.size() == kMostEntries) {
      entries_.erase(entries_.begin());
    }
    entries_.push_back({arguments, Graph()});
  }

  std::vector<Entry> entries_;
  std::size_t misses_ = 0;  ///< in a row
};

}  // namespace train_gpt::cuda
