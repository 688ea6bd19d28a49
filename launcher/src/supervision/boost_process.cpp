// Boost.Process v2 of Boost 1.81 links only when its sources are compiled once, here. Where Asio is
// compiled apart, it forgets to include throw_error.hpp.
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/src.hpp>
