#pragma once

#include "acc/base/unique_fd.hpp"
#include "collectives/group_spec.hpp"

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace acc::collectives {

/// The sockets over which rank 0 of a group on one host gives its shared memory to the others. Each
/// end learns from the kernel that the other runs as the same user and which process it is, and
/// demands a proof that it has the job's secret and is this rank of this group. The store says only
/// at which local socket rank 0 listens, and is not trusted with more.
class DescriptorLinks {
 public:
  /// Collective over the ranks of `spec`, which outlives it. Throws Error(protocol) on a rank that
  /// meets another process than rank 0, Error(timeout) and Error(collective) that name the rank
  /// that did not come or that ended; who is no rank of the group is turned away.
  explicit DescriptorLinks(const GroupSpec& spec);

  /// On rank 0: the process of each other rank.
  [[nodiscard]] pid_t pid(int rank) const { return links_[static_cast<std::size_t>(rank)].pid; }

  /// On rank 0: gives the memory file `fd` to all others. Does not wait for them.
  void give(int fd, std::size_t nbytes) const;
  /// On the others: waits for what rank 0 gives. Its content is not checked.
  [[nodiscard]] UniqueFd take(std::size_t nbytes) const;

 private:
  struct Link {
    UniqueFd socket;
    pid_t pid = 0;
  };
  class Gathering;

  void join();

  const GroupSpec& spec_;
  std::vector<Link> links_;  ///< rank 0: by rank, the first unused; others: the one to rank 0
};

}  // namespace acc::collectives
