// SPDX-License-Identifier: Apache-2.0
#include "etcd/base64.hpp"

#include <boost/beast/core/detail/base64.hpp>

namespace acc::rendezvous {

namespace base64 = boost::beast::detail::base64;

std::string to_base64(std::string_view bytes) {
  std::string text(base64::encoded_size(bytes.size()), '\0');
  text.resize(base64::encode(text.data(), bytes.data(), bytes.size()));
  return text;
}

std::string from_base64(std::string_view text) {
  // Without padding, Beast's size is that of the whole groups of four characters only.
  std::string bytes(base64::decoded_size(text.size() + 3), '\0');
  bytes.resize(base64::decode(bytes.data(), text.data(), text.size()).first);
  return bytes;
}

}  // namespace acc::rendezvous
