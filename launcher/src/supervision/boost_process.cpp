// Compiles the sources of Boost.Process v2, which Boost 1.81 requires exactly once per program.
// They lack the include of throw_error.hpp that is needed if Asio is compiled separately.
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/src.hpp>
