// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/board.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "commands/top/watched_job.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <string_view>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;

/// Ranks that one request asks for.
constexpr std::size_t kRanksPerRequest = 2000;

// Limits of a server's answers to one look, so that it ends whatever the server says: jobs, ranks
// of one job (a server of ours keeps fewer of both), and time.
constexpr std::size_t kMaxJobs = 10'000;
constexpr std::size_t kMaxRanks = rendezvous::Board::kMaxRanks;
constexpr std::chrono::seconds kLookLimit{60};

/// Encodes all bytes but the unreserved characters of RFC 3986.
std::string percent_encoded(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string_view::npos) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", byte);
    }
  }
  return result;
}

/// Returns the message in the body of an answer that is an error, or the status line.
std::string reason_of(const std::string& head, const Json& body) {
  if (body.is_object() && body.contains("error") && body.at("error").is_object()) {
    const auto message = body.at("error").value("message", "");
    if (!message.empty()) {
      return printable(message);
    }
  }
  return printable(head.substr(0, head.find('\r')));
}

}  // namespace

std::vector<std::string> ServerJobs::advice() const {
  if (rendezvous::is_unix(name())) {  // launchers do not join through a Unix socket
    return {"no job has joined " + name() + " yet"};
  }
  return {"no job has joined " + name() + " yet. To start one, on each machine:",
          "  acclaunch torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint " + name() +
              " --rdzv_id NAME train.py"};
}

Json ServerJobs::get(const std::string& path, rendezvous::HttpReader::Time until) const {
  const std::string answer = reader_.get("/api/v1/" + path, until);
  const auto end = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.") || end == std::string::npos) {
    throw Error(Errc::protocol, name() + " does not answer as the HTTP API does");
  }
  Json body = json_from_text<Json>(answer.substr(end + 4), nullptr, false);
  const std::string_view status = std::string_view(answer).substr(std::strlen("HTTP/1.1 "), 3);
  if (status == "401") {
    throw Error(Errc::config, name() +
                                  ": the server requires a token: set ACC_RENDEZVOUS_TOKEN_FILE to "
                                  "a file with it");
  }
  if (status == "404") {
    throw Error(Errc::not_found, name() + ": " + reason_of(answer, body));
  }
  if (status == "200" && !body.is_object()) {
    throw Error(Errc::protocol, name() + ": the answer is cut off, or it is not JSON");
  }
  if (status != "200") {
    throw Error(Errc::protocol, name() + ": " + reason_of(answer, body));
  }
  return body;
}

std::vector<WatchedJob> ServerJobs::look() {
  const auto until = std::chrono::steady_clock::now() + kLookLimit;
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) {
      throw Error(Errc::protocol, name() + ": " + what);
    }
  };
  std::vector<WatchedJob> result;
  Json jobs = Json::array();
  if (job_.empty()) {
    jobs = get("jobs", until).value("jobs", Json::array());
    require(jobs.is_array() && jobs.size() <= kMaxJobs,
            fmt::format("expected a list of at most {} jobs", kMaxJobs));
  } else {
    jobs.push_back(get("jobs/" + percent_encoded(job_), until));
  }
  for (Json& job : jobs) {
    require(job.is_object() && job.contains("id") && job.at("id").is_string(),
            "a job without an ID");
    const std::string path = "jobs/" + percent_encoded(job.at("id").get<std::string>()) + "/ranks";
    Json ranks = Json::array();
    std::size_t total = 1;
    while (ranks.size() < total) {
      const Json part =
          get(fmt::format("{}?from={}&limit={}", path, ranks.size(), kRanksPerRequest), until);
      const auto list = part.find("ranks");
      total = part.value("total", std::size_t{0});
      require(total <= kMaxRanks,
              fmt::format("a job of {} ranks, expected at most {}", total, kMaxRanks));
      if (list == part.end() || !list->is_array() || list->empty()) {
        break;
      }
      ranks.insert(ranks.end(), list->begin(), list->end());
      require(ranks.size() >= total || list->size() >= kRanksPerRequest,
              fmt::format("{} ranks in an answer that has more, expected {}", list->size(),
                          kRanksPerRequest));
    }
    result.push_back({std::move(job), std::move(ranks)});
  }
  return result;
}

}  // namespace acc::launcher::commands
