#pragma once

#include <cstddef>

namespace acc::rendezvous {

/// Lets this process have as many descriptors as it may.
void raise_descriptor_limit();

/// How many connections fit the descriptors of this process.
std::size_t max_fitting_connections();

/// Warns where so many connections do not fit.
void check_room_for(std::size_t max_connections);

}  // namespace acc::rendezvous
