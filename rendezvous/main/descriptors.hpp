#pragma once

#include <cstddef>

namespace acc::rendezvous {

/// Lets this process have as many descriptors as it may, and warns where so many connections do not
/// fit.
void make_room_for(std::size_t max_connections);

}  // namespace acc::rendezvous
