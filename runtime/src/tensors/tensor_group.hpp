// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/shm/shm_channel.hpp"
#include "kernels/kernels.hpp"
#include "tensors/mailbox.hpp"
#include "tensors/staging.hpp"
#include "tensors/work.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace acc::tensors {

/// How a call is issued.
struct Issue {
  std::chrono::milliseconds timeout;  ///< limit for each wait for a peer
  bool detached = false;              ///< the caller does not wait for the call right away
};

struct Input {
  const std::byte* data = nullptr;
  std::size_t nbytes = 0;
};
struct Output {
  std::byte* data = nullptr;
  std::size_t nbytes = 0;
};

/// A communicator of ranks of one host, for memory that lies anywhere. All ranks issue the same
/// collectives in the same order; messages (`send`, `receive`) are independent of that order. A
/// result of a reduction is computed in rank order and is bitwise the same on all ranks.
///
/// Arguments are checked before memory is touched, and Error(invalid_argument) names what is wrong:
/// a root or peer that is no rank, another number of parts than ranks, parts of other sizes than
/// the call needs, sizes that no memory can have, results that share memory with each other or with
/// an input. An input may be the place of its own result.
///
/// The caller keeps inputs and outputs until the work is done. Any thread may call any function;
/// collectives are ordered by their calls. A failed call aborts the group on all ranks.
class TensorGroup {
 public:
  /// Collective over the ranks of `spec`, which are all on this host.
  explicit TensorGroup(collectives::GroupSpec spec);
  /// Aborts the group if a call is still under way. No thread may wait for one.
  ~TensorGroup();

  [[nodiscard]] int rank() const noexcept { return channel_.rank(); }
  [[nodiscard]] int size() const noexcept { return channel_.size(); }

  WorkPtr barrier(Issue issue);
  /// In place. data: [numel].
  WorkPtr all_reduce(Issue issue, void* data, std::size_t numel, kernels::Element element,
                     kernels::ElementOp op);
  /// data: [numel]; receives the result on the root and keeps its values elsewhere.
  WorkPtr reduce(Issue issue, void* data, std::size_t numel, kernels::Element element,
                 kernels::ElementOp op, int root);
  /// ins: by rank, each [numel]; out: [numel].
  WorkPtr reduce_scatter(Issue issue, std::vector<const void*> ins, void* out, std::size_t numel,
                         kernels::Element element, kernels::ElementOp op);
  WorkPtr broadcast(Issue issue, Output data, int root);
  /// outs: by rank; their sizes may differ, outs[r] has the size of rank r's `in`.
  WorkPtr all_gather(Issue issue, Input in, std::vector<Output> outs);
  /// outs: by rank, used on the root only; all of the size of `in`.
  WorkPtr gather(Issue issue, Input in, std::vector<Output> outs, int root);
  /// ins: by rank, used on the root only; all of the size of `out`.
  WorkPtr scatter(Issue issue, std::vector<Input> ins, Output out, int root);
  /// ins[r] is sent to rank r, outs[r] is received from rank r.
  WorkPtr all_to_all(Issue issue, std::vector<Input> ins, std::vector<Output> outs);

  /// Counts a collective that this rank refuses to make because of its arguments, so that the next
  /// one does not meet the peers' call of this one. Those that throw did not call it.
  void refuse() noexcept { ++refused_; }

  /// Done when the message has been copied to memory shared with the receiver.
  WorkPtr send(Issue issue, Input message, int to, int tag);
  /// from: a rank, or -1 for any. The message must have the size of `message`.
  WorkPtr receive(Issue issue, Output message, int from, int tag);

  /// Returns when the work is done; throws the error with which it ended. Throws Error(timeout) and
  /// aborts the group if it is not done within `limit`.
  void wait(const Work& work, std::optional<std::chrono::milliseconds> limit);

  void abort(const std::string& reason) noexcept;
  [[nodiscard]] std::optional<std::string> failure() const { return channel_.failure(); }

 private:
  /// Bytes of a peer's stream that this rank copies to `to`.
  struct Part {
    std::byte* to = nullptr;
    std::size_t offset = 0;
    std::size_t nbytes = 0;
  };
  /// One rank's view of a collective that only moves bytes: each rank sends one stream of bytes
  /// through its staging pieces, and the others copy parts of it.
  struct Movement {
    std::vector<Input> stream = {};  ///< this rank's, in pieces
    std::size_t longest = 0;         ///< bytes of the longest stream of any rank
    std::vector<Part> parts = {};    ///< by source rank; empty: this rank reads nothing
    /// The ranks whose calls are compared with this one's even without data from them.
    std::vector<int> compared = {};
  };

  WorkPtr issue(Issue how, Call call, std::function<void()> execute);
  [[nodiscard]] std::vector<int> all_ranks() const;
  void check_rank(int rank, const char* what) const;
  void check_peer(int rank, int tag, const char* what) const;
  /// One part per rank.
  void check_count(std::size_t count, const char* call, const char* what) const;
  /// All ranks' parts together are no more than memory can hold.
  void check_nbytes(std::size_t nbytes, const char* call) const;
  /// Returns the size of `numel` elements.
  std::size_t checked_nbytes(std::size_t numel, kernels::Element element, const char* call) const;
  [[nodiscard]] std::size_t index(int rank) const { return static_cast<std::size_t>(rank); }

  void move(const Movement& movement);
  void move_all_gather(Input in, const std::vector<Output>& outs);
  void move_all_to_all(const std::vector<Input>& ins, const std::vector<Output>& outs);
  void write_piece(const std::vector<Input>& stream, std::size_t begin);
  void read_parts(const std::vector<Part>& parts, std::size_t begin);
  void sum_on_every_rank(std::byte* data, std::size_t numel, kernels::Element element,
                         kernels::ElementOp op);
  void sum_in_slices(std::byte* data, std::size_t numel, kernels::Element element,
                     kernels::ElementOp op);

  collectives::ShmChannel channel_;
  Staging staging_;
  Mailbox mailbox_;
  WorkQueue queue_;
  std::atomic<std::uint32_t> refused_ = 0;
};

}  // namespace acc::tensors
