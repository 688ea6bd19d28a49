// SPDX-License-Identifier: Apache-2.0
// The compiled part of Boost.Process v2, once per program. Boost up to 1.85 has its sources as one
// header, which lacks the include of throw_error.hpp that is needed if Asio is compiled separately.
// Later ones have a library, which CMake links. Debian 13 has the headers of 1.88 without that
// library; of it, the initializers that start workers need one function.
#include <boost/asio/detail/throw_error.hpp>
#include <boost/process/v2/detail/last_error.hpp>

#if defined(ACC_LINKS_BOOST_PROCESS)
#elif __has_include(<boost/process/v2/src.hpp>)
#include <boost/process/v2/src.hpp>
#else
#include <cerrno>

namespace boost::process::v2::detail {
error_code get_last_error() {
  return {errno, boost::system::system_category()};
}
}  // namespace boost::process::v2::detail
#endif
