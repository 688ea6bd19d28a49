// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace acc::rendezvous {

/// True if the other end of a TCP connection over IPv4 loopback belongs to this process' user or to
/// root, or if the kernel does not tell. `socket` is the accepted one.
bool is_own_users(int socket);

}  // namespace acc::rendezvous
