// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "s3/service.hpp"

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace acc::s3 {

struct Answer {
  long status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< empty if it was read into memory of the caller

  /// Returns the reason of a failure: the code and the message of the service.
  [[nodiscard]] std::string problem() const;
};

/// Sends requests by libcurl, one connection per thread. A request that fails for a reason that may
/// pass (no connection, status 429 or 5xx) is repeated up to four times, after growing pauses.
class Client {
 public:
  explicit Client(Service service) : service_(std::move(service)) {}

  struct Call {
    const char* method;
    std::string bucket, key;
    std::map<std::string, std::string> query = {};
    std::map<std::string, std::string> headers = {};
    std::span<const std::byte> body = {};
    std::span<std::byte> into = {};  ///< takes the body of an answer with status 200 or 206
  };
  /// Throws std::runtime_error if there is no answer, or if the body of an answer has another size
  /// than `into`.
  [[nodiscard]] Answer send(const Call& call) const;

 private:
  [[nodiscard]] Answer send_once(const Call& call) const;

  Service service_;
};

}  // namespace acc::s3
