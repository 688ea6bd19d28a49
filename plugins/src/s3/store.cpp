// SPDX-License-Identifier: Apache-2.0
#include "acc/base/object_store.hpp"
#include "s3/client.hpp"

#include <boost/property_tree/xml_parser.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace acc::s3 {

namespace {

using boost::property_tree::ptree;

// Limits of the service: an object has at most 10,000 parts, and each but the last at least 5 MiB.
constexpr std::uint64_t kPart = std::uint64_t{8} << 20;
constexpr std::uint64_t kParts = 10'000;

/// The parts of "s3://<bucket>/<key>".
struct Name {
  std::string bucket, key;

  explicit Name(std::string_view name) {
    constexpr std::string_view kScheme = "s3://";
    std::string_view rest = name.starts_with(kScheme) ? name.substr(kScheme.size()) : "";
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    bucket = rest.substr(0, slash);
    rest.remove_prefix(slash);
    while (!rest.empty() && rest.front() == '/') {
      rest.remove_prefix(1);
    }
    while (!rest.empty() && rest.back() == '/') {
      rest.remove_suffix(1);
    }
    for (const char letter : rest) {  // as for a file, "a//b" is "a/b"
      if (letter != '/' || !key.ends_with('/')) {
        key += letter;
      }
    }
    if (bucket.empty()) {
      throw std::runtime_error("expected s3://<bucket>/<key>");
    }
  }
};

Answer checked(Answer answer) {
  if (answer.status >= 300) {
    throw std::runtime_error(answer.problem());
  }
  return answer;
}

ptree document_of(const Answer& answer) {
  ptree document;
  try {
    std::istringstream in(answer.body);
    boost::property_tree::read_xml(in, document);
  } catch (const boost::property_tree::xml_parser_error&) {
    throw std::runtime_error("the service's answer is not XML");
  }
  return document;
}

std::string text_of(const ptree& document, const char* path) {
  const auto text = document.get_optional<std::string>(path);
  if (!text) {
    throw std::runtime_error(fmt::format("the service's answer has no {}", path));
  }
  return *text;
}

std::string header_of(const Answer& answer, const char* name) {
  const auto found = answer.headers.find(name);
  if (found == answer.headers.end()) {
    throw std::runtime_error(fmt::format("the service's answer has no header {}", name));
  }
  return found->second;
}

std::uint64_t number_of(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::runtime_error(fmt::format("the service's answer has '{}' as a size", text));
  }
  return number;
}

/// Sends a small object as a whole, and a larger one in parts, of which one is sent while the next
/// one is filled.
class Upload final : public ObjectWriter {
 public:
  Upload(const Client& client, Name name) : client_(client), name_(std::move(name)) {}
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  ~Upload() override {
    try {
      if (sending_.valid()) {
        sending_.wait();
      }
      if (!id_.empty() && !finished_) {
        static_cast<void>(client_.send(call("DELETE", {{"uploadId", id_}})));
      }
    } catch (const std::exception&) {  // the service removes parts by the rules of its bucket
    }
  }

  void expect(std::uint64_t nbytes) override { part_ = std::max(part_, nbytes / (kParts - 1) + 1); }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), part_ - filled_.size()));
      filled_.insert(filled_.end(), piece.begin(), piece.end());
      bytes = bytes.subspan(piece.size());
      if (filled_.size() == part_) {
        send_part();
      }
    }
  }

  void finish() override {
    if (id_.empty()) {
      auto whole = call("PUT", {});
      whole.body = filled_;
      checked(client_.send(whole));
      finished_ = true;
      return;
    }
    if (!filled_.empty()) {
      send_part();
    }
    take_tag();
    std::string list = "<CompleteMultipartUpload>";
    for (std::size_t i = 0; i < tags_.size(); ++i) {
      list +=
          fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, tags_[i]);
    }
    list += "</CompleteMultipartUpload>";
    auto last = call("POST", {{"uploadId", id_}});
    last.body = std::as_bytes(std::span(list));
    const Answer answer = checked(client_.send(last));
    // The service may find an error after it has sent the status 200.
    if (document_of(answer).get_child_optional("Error")) {
      throw std::runtime_error(answer.problem());
    }
    finished_ = true;
  }

 private:
  [[nodiscard]] Client::Call call(const char* method,
                                  std::map<std::string, std::string> query) const {
    return {.method = method, .bucket = name_.bucket, .key = name_.key, .query = std::move(query)};
  }

  void send_part() {
    if (id_.empty()) {
      id_ = text_of(document_of(checked(client_.send(call("POST", {{"uploads", ""}})))),
                    "InitiateMultipartUploadResult.UploadId");
    }
    take_tag();
    if (tags_.size() + 1 > kParts) {
      throw std::runtime_error("the object has more than 10,000 parts");
    }
    std::swap(filled_, sent_);
    filled_.clear();
    auto part = call("PUT", {{"partNumber", std::to_string(tags_.size() + 1)}, {"uploadId", id_}});
    part.body = sent_;
    sending_ = std::async(std::launch::async,
                          [this, part] { return header_of(checked(client_.send(part)), "etag"); });
    // Sizes that were not stated: the first thousand parts have 8 MiB, the next ones 16, and so on.
    if (tags_.size() % 1000 == 999) {
      part_ *= 2;
    }
  }

  /// Waits for the part that is being sent.
  void take_tag() {
    if (sending_.valid()) {
      tags_.push_back(sending_.get());
    }
  }

  const Client& client_;
  Name name_;
  std::uint64_t part_ = kPart;
  std::vector<std::byte> filled_, sent_;
  std::future<std::string> sending_;
  std::vector<std::string> tags_;  ///< of the parts that the service has
  std::string id_;                 ///< of the upload; empty: none was begun
  bool finished_ = false;
};

class Store final : public ObjectStore {
 public:
  explicit Store(VariableOf& variable) : variable_(variable) {}

  std::optional<Found> find(const std::string& name) override {
    const Name at(name);
    if (at.key.empty()) {
      return std::nullopt;  // a bucket
    }
    const Answer answer = client().send({.method = "HEAD", .bucket = at.bucket, .key = at.key});
    if (answer.status == 404) {
      return std::nullopt;
    }
    checked(answer);
    return Found{number_of(header_of(answer, "content-length")), header_of(answer, "etag")};
  }

  std::map<std::string, Found> list(const std::string& group) override {
    const Name at(group);
    const std::string prefix = at.key.empty() ? "" : at.key + "/";
    std::map<std::string, Found> result;
    std::string next;
    do {
      std::map<std::string, std::string> query = {
          {"list-type", "2"}, {"prefix", prefix}, {"delimiter", "/"}};
      if (!next.empty()) {
        query["continuation-token"] = next;
      }
      const ptree document = document_of(checked(client().send(
          {.method = "GET", .bucket = at.bucket, .key = "", .query = std::move(query)})));
      const auto listed = document.get_child_optional("ListBucketResult");
      if (!listed) {  // of a proxy; an empty list would hide all checkpoints
        throw std::runtime_error("the service's answer has no ListBucketResult");
      }
      next.clear();
      for (const auto& [kind, entry] : *listed) {
        if (kind == "NextContinuationToken") {
          next = entry.data();
          continue;
        }
        if (kind != "Contents" && kind != "CommonPrefixes") {
          continue;
        }
        const bool is_group = kind == "CommonPrefixes";
        const std::string key = text_of(entry, is_group ? "Prefix" : "Key");
        if (key.size() > prefix.size() && key.starts_with(prefix)) {
          result[key.substr(prefix.size())] =
              is_group ? Found() : Found{number_of(text_of(entry, "Size")), text_of(entry, "ETag")};
        }
      }
    } while (!next.empty());
    return result;
  }

  void read(const std::string& name, const Found& object, std::uint64_t offset,
            std::span<std::byte> out) override {
    if (out.empty()) {
      return;
    }
    const Name at(name);
    const Answer answer = client().send(
        {.method = "GET",
         .bucket = at.bucket,
         .key = at.key,
         .headers = {{"range", fmt::format("bytes={}-{}", offset, offset + out.size() - 1)},
                     {"if-match", object.version}},
         .into = out});
    if (answer.status == 412 || answer.status == 404) {
      throw std::runtime_error("it was replaced or removed while it was read");
    }
    checked(answer);
  }

  std::unique_ptr<ObjectWriter> create(const std::string& name) override {
    return std::make_unique<Upload>(client(), Name(name));
  }

  void remove(const std::string& name) override {
    const Name at(name);
    const Answer answer = client().send({.method = "DELETE", .bucket = at.bucket, .key = at.key});
    if (answer.status != 404) {
      checked(answer);
    }
  }

 private:
  /// Made at the first use, so that a missing key is an error with the name of an object.
  const Client& client() {
    static const Client client(find_service(variable_));
    return client;
  }

  VariableOf& variable_;
};

}  // namespace
}  // namespace acc::s3

extern "C" __attribute__((visibility("default"))) acc::ObjectStore* acc_s3_store(
    int version, acc::VariableOf* variable) {
  static acc::s3::Store store(*variable);
  return version == acc::kObjectStoreVersion ? &store : nullptr;
}
