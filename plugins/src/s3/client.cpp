// SPDX-License-Identifier: Apache-2.0
#include "s3/client.hpp"

#include "s3/curl.hpp"

#include <boost/property_tree/xml_parser.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace acc::s3 {

namespace {

constexpr int kTries = 5;
constexpr auto kFirstPause = std::chrono::milliseconds(100);
constexpr long kConnectSeconds = 30;
// A connection that moves less than a byte per second for so long has failed.
constexpr long kStallSeconds = 60;

/// A failure of the connection, which may pass.
class NoAnswer : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Received {
  Answer answer;
  std::span<std::byte> into;
  std::size_t count = 0;  ///< bytes of the body
  CURL* handle = nullptr;
};

std::size_t take_body(const char* data, std::size_t one, std::size_t count, void* user) {
  auto& received = *static_cast<Received*>(user);
  const std::size_t nbytes = one * count;
  long status = 0;
  curl().info(received.handle, CURLINFO_RESPONSE_CODE, &status);
  if (received.into.empty() || status >= 300) {
    received.answer.body.append(data, nbytes);
  } else if (nbytes <= received.into.size() - received.count) {
    std::memcpy(received.into.data() + received.count, data, nbytes);
  } else {
    return 0;  // makes the transfer fail
  }
  received.count += nbytes;
  return nbytes;
}

std::size_t take_header(const char* data, std::size_t one, std::size_t count, void* user) {
  std::string_view line(data, one * count);
  if (const auto colon = line.find(':'); colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t", colon + 1)));
    line = line.substr(0, line.find_last_not_of(" \r\n") + 1);
    static_cast<Received*>(user)->answer.headers[name] = line;
  }
  return one * count;
}

/// The connections of this thread, which later requests use again.
CURL* own_handle() {
  static const CURLcode started = curl().global_init(CURL_GLOBAL_DEFAULT);
  thread_local const std::unique_ptr<CURL, decltype(Curl::cleanup)> handle(
      started == CURLE_OK ? curl().init() : nullptr, curl().cleanup);
  if (!handle) {
    throw std::runtime_error("libcurl cannot be started");
  }
  curl().reset(handle.get());
  return handle.get();
}

}  // namespace

std::string Answer::problem() const {
  std::string text = fmt::format("the service answers {}", status);
  try {
    std::istringstream in(body);
    boost::property_tree::ptree document;
    boost::property_tree::read_xml(in, document);
    text += fmt::format(", {}: {}", document.get<std::string>("Error.Code"),
                        document.get<std::string>("Error.Message", ""));
  } catch (const boost::property_tree::ptree_error&) {  // a proxy's page, or no body at all
  }
  return text;
}

Answer Client::send_once(const Call& call) const {
  const std::string base = service_.base_of(call.bucket);
  Request request{.method = call.method,
                  .host = base.substr(base.find("://") + 3),
                  .path = "",
                  .query = call.query,
                  .headers = call.headers,
                  .body = call.body};
  request.path = service_.has_bucket_in_path(call.bucket) ? "/" + encoded(call.bucket) : "";
  request.path += "/" + encoded(call.key, true);
  sign(request, service_.keys, service_.region, std::time(nullptr));
  std::string url = base + request.path;
  if (!request.query.empty()) {
    url += "?" + query_text(request.query);
  }

  CURL* const handle = own_handle();
  const auto set = [handle](CURLoption option, auto value) { curl().set(handle, option, value); };
  Received received{.answer = {}, .into = call.into, .handle = handle};
  std::array<char, CURL_ERROR_SIZE> reason{};
  curl_slist* list = nullptr;
  for (const auto& [name, value] : request.headers) {
    list = curl().append(list, fmt::format("{}: {}", name, value).c_str());
  }
  list = curl().append(list, "Expect:");  // no pause before a body is sent
  list = curl().append(list, "Content-Type:");
  const std::unique_ptr<curl_slist, decltype(Curl::free_list)> headers(list, curl().free_list);
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PATH_AS_IS, 1L);  // the path was signed as it is
  set(CURLOPT_HTTPHEADER, list);
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, &received);
  set(CURLOPT_HEADERFUNCTION, &take_header);
  set(CURLOPT_HEADERDATA, &received);
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDS,
        call.body.empty() ? "" : reinterpret_cast<const char*>(call.body.data()));
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const CURLcode result = curl().perform(handle);
  if (result != CURLE_OK) {
    throw NoAnswer(
        fmt::format("{}: {}", base, reason[0] != '\0' ? reason.data() : curl().text_of(result)));
  }
  curl().info(handle, CURLINFO_RESPONSE_CODE, &received.answer.status);
  if (received.answer.status < 300 && received.count < call.into.size()) {
    throw NoAnswer(fmt::format("{} bytes expected, {} received", call.into.size(), received.count));
  }
  return received.answer;
}

Answer Client::send(const Call& call) const {
  auto pause = kFirstPause;
  for (int tried = 1;; ++tried) {
    try {
      Answer answer = send_once(call);
      if (tried == kTries || (answer.status != 429 && answer.status < 500)) {
        return answer;
      }
    } catch (const NoAnswer&) {
      if (tried == kTries) {
        throw;
      }
    }
    std::this_thread::sleep_for(pause);
    pause *= 4;
  }
}

}  // namespace acc::s3
