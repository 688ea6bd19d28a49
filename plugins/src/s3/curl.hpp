// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <curl/curl.h>

namespace acc::s3 {

/// The functions of libcurl that this library calls. It is loaded, not linked, because it is that
/// of the machine, also where acclaunch brings the other libraries that it needs.
struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) init = nullptr;
  decltype(&::curl_easy_cleanup) cleanup = nullptr;
  decltype(&::curl_easy_reset) reset = nullptr;
  CURLcode (*set)(CURL*, CURLoption, ...) = nullptr;
  decltype(&::curl_easy_perform) perform = nullptr;
  CURLcode (*info)(CURL*, CURLINFO, ...) = nullptr;
  decltype(&::curl_easy_strerror) text_of = nullptr;
  decltype(&::curl_slist_append) append = nullptr;
  decltype(&::curl_slist_free_all) free_list = nullptr;
};

/// Throws std::runtime_error if the machine has no libcurl.
const Curl& curl();

}  // namespace acc::s3
