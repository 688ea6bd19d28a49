// SPDX-License-Identifier: Apache-2.0
// The compiled part of Asio, once for all users of the library (BOOST_ASIO_SEPARATE_COMPILATION).
#include <boost/asio/impl/src.hpp>
