// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/beast/core/detail/base64.hpp>

#include <string>
#include <string_view>

namespace acc::rendezvous {

inline std::string to_base64(std::string_view bytes) {
  std::string text(boost::beast::detail::base64::encoded_size(bytes.size()), '\0');
  text.resize(boost::beast::detail::base64::encode(text.data(), bytes.data(), bytes.size()));
  return text;
}

/// Decodes up to the first character that is not of base64; padding may be missing.
inline std::string from_base64(std::string_view text) {
  // Without padding, Beast's size is that of the whole groups of four characters only.
  std::string bytes(boost::beast::detail::base64::decoded_size(text.size() + 3), '\0');
  bytes.resize(boost::beast::detail::base64::decode(bytes.data(), text.data(), text.size()).first);
  return bytes;
}

}  // namespace acc::rendezvous
