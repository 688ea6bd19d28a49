// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "collectives/group_spec.hpp"

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace acc::collectives {

/// Unix domain sockets over which rank 0 of a group on one host passes the descriptors of its
/// shared memory to the other ranks. Each end asks the kernel (SO_PEERCRED) for the other's user
/// and process id, and demands a proof that the other has the job's secret and is the expected rank
/// of this group. The store is trusted only with the name of the socket on which rank 0 listens: a
/// wrong name makes the creation of the group fail, but gives no one access to its memory.
class DescriptorLinks {
 public:
  /// Connects the ranks of `spec`, which outlives the object. Collective. Throws Error(protocol) on
  /// a rank that finds a process other than rank 0 at the socket. Throws Error(timeout) or
  /// Error(collective), which name the rank, if a rank does not connect in time or ends before.
  /// Processes that are not ranks of the group are refused with a warning and do no harm.
  explicit DescriptorLinks(const GroupSpec& spec);

  /// On rank 0: the process id of another rank.
  [[nodiscard]] pid_t pid(int rank) const { return links_[static_cast<std::size_t>(rank)].pid; }

  /// On rank 0: sends the memory file `fd` to all other ranks. Does not wait until they receive it.
  void give(int fd, std::size_t nbytes) const;
  /// On other ranks: waits for the next memory file of rank 0, which must be announced with
  /// `nbytes`. Does not check the file itself; `SharedMapping::open` does.
  [[nodiscard]] UniqueFd take(std::size_t nbytes) const;
  /// Closes the sockets.
  void close() noexcept {
    for (Link& link : links_) {
      link.socket.reset();
    }
  }

 private:
  struct Link {
    UniqueFd socket;
    pid_t pid = 0;
  };
  class Gathering;

  void join();

  const GroupSpec& spec_;
  std::vector<Link> links_;  ///< rank 0: by group rank, [0] unused; others: one, to rank 0
};

}  // namespace acc::collectives
