// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/object_store.hpp"
#include "s3/signature.hpp"

#include <string>

namespace acc::s3 {

/// Where the service is, and the keys to it.
struct Service {
  std::string endpoint;  ///< "https://host:port"; empty: Amazon's, by region
  std::string region;
  Keys keys;

  /// Returns scheme and host of a bucket's requests. A named endpoint, and a bucket with dots in
  /// its name, for which Amazon's certificates do not hold, have the bucket in the path.
  [[nodiscard]] std::string base_of(const std::string& bucket) const;
  [[nodiscard]] bool has_bucket_in_path(const std::string& bucket) const;
};

/// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
/// AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, and what is missing from the files
/// ~/.aws/credentials and ~/.aws/config, from the profile AWS_PROFILE. Throws std::runtime_error if
/// there are no keys.
Service find_service(VariableOf& variable_of);

}  // namespace acc::s3
