#pragma once

#include <sys/socket.h>

#include <string>

namespace acc::rendezvous {

/// `127.0.0.1:29500`, `[::1]:29500`, `unix:/path` (`unix:@name` without a file); empty for an
/// address of another family.
std::string socket_name(const sockaddr* address, socklen_t size);

}  // namespace acc::rendezvous
