// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace acc::rendezvous {

std::string to_base64(std::string_view bytes);
/// Decodes up to the first character that is not of base64; padding may be missing.
std::string from_base64(std::string_view text);

}  // namespace acc::rendezvous
