// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace acc::rendezvous {

/// Certificate files in PEM format; empty: none.
struct TlsFiles {
  std::filesystem::path certificate;  ///< own certificate, followed by intermediate ones
  std::filesystem::path key;          ///< private key of `certificate`
  std::filesystem::path ca;           ///< certificates that the peer's certificate must lead to

  bool operator==(const TlsFiles&) const = default;
};

}  // namespace acc::rendezvous
