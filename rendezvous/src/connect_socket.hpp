#pragma once

#include "acc/base/unique_fd.hpp"
#include "socket_address.hpp"
#include "stoppable_poll.hpp"

#include <span>

namespace acc::rendezvous {

/// A non-blocking socket, connected to one of `addresses`, in their order: the next one is tried
/// when one fails or has not answered in a quarter of a second, and the first to answer is taken,
/// so that an address that leads nowhere costs no more than that.
///
/// Throws Error(timeout) at the deadline, else Error(connection) with the last reason.
UniqueFd connect_socket(std::span<const SocketAddress> addresses, StoppablePoll::TimePoint deadline,
                        const StoppablePoll& poll);

}  // namespace acc::rendezvous
