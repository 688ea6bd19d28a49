// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <ctime>
#include <map>
#include <span>
#include <string>

/// Signature Version 4 of requests to S3 ("Authenticating Requests: Using the Authorization
/// Header", Amazon S3 API Reference).
namespace acc::s3 {

struct Keys {
  std::string id;
  std::string secret;
  std::string session_token;  ///< of temporary keys; else empty
};

struct Request {
  std::string method;
  std::string host;                            ///< with the port, if it is not the scheme's own
  std::string path;                            ///< encoded, from the first slash
  std::map<std::string, std::string> query;    ///< not encoded
  std::map<std::string, std::string> headers;  ///< names in lower case; all of them are signed
  std::span<const std::byte> body;
};

/// Encodes all bytes except letters, digits, '-', '.', '_' and '~'; keeps slashes if `path`.
std::string encoded(const std::string& text, bool path = false);
/// Returns "a=b&c=d", sorted and encoded.
std::string query_text(const std::map<std::string, std::string>& query);

/// Adds the headers x-amz-date, x-amz-content-sha256, x-amz-security-token and authorization.
void sign(Request& request, const Keys& keys, const std::string& region, std::time_t now);

}  // namespace acc::s3
