// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace acc::rendezvous {

/// The status page: one HTML document without references to other files. It shows what the HTTP API
/// (docs/api.md) says of jobs. Its source is status.html in this folder.
std::string_view status_page() noexcept;

}  // namespace acc::rendezvous
