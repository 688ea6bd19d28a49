// SPDX-License-Identifier: Apache-2.0
#include "s3/curl.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>
#include <type_traits>

namespace acc::s3 {

namespace {

constexpr const char* kLibcurl = "libcurl.so.4";

Curl load() {
  void* const library = dlopen(kLibcurl, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(
        fmt::format("s3:// needs {} (Debian, Ubuntu: libcurl4): {}", kLibcurl, dlerror()));
  }
  Curl curl;
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) {
      throw std::runtime_error(fmt::format("{} has no {}", kLibcurl, name));
    }
  };
  find(curl.global_init, "curl_global_init");
  find(curl.init, "curl_easy_init");
  find(curl.cleanup, "curl_easy_cleanup");
  find(curl.reset, "curl_easy_reset");
  find(curl.set, "curl_easy_setopt");
  find(curl.perform, "curl_easy_perform");
  find(curl.info, "curl_easy_getinfo");
  find(curl.text_of, "curl_easy_strerror");
  find(curl.append, "curl_slist_append");
  find(curl.free_list, "curl_slist_free_all");
  return curl;
}

}  // namespace

const Curl& curl() {
  static const Curl loaded = load();
  return loaded;
}

}  // namespace acc::s3
