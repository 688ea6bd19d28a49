#pragma once

#include "acc/base/unique_fd.hpp"
#include "net/socket_address.hpp"
#include "net/stoppable_poll.hpp"

#include <span>

namespace acc::rendezvous {

/// Returns a non-blocking socket that is connected to one of `addresses`. They are tried in order:
/// the next one starts when one fails or has not answered within 250 ms, and the first that
/// connects wins ("Happy Eyeballs", RFC 8305). An unreachable address therefore costs at most 250
/// ms.
///
/// Throws Error(timeout) at the deadline, or Error(connection) with the last error when all failed.
UniqueFd connect_socket(std::span<const SocketAddress> addresses, StoppablePoll::TimePoint deadline,
                        const StoppablePoll& poll);

}  // namespace acc::rendezvous
