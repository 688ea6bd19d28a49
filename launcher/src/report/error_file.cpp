// SPDX-License-Identifier: Apache-2.0
#include "report/error_file.hpp"

#include "acc/base/json.hpp"
#include "acc/base/json_form.hpp"
#include "acc/base/unique_fd.hpp"
#include "report/words.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace acc::launcher::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
// PyTorch's files have 3 levels. The limit bounds the parser's memory for a malformed file.
constexpr int kMaxDepth = 16;

/// Reads the file into `text`. Returns empty on success, else the reason of the failure. A missing
/// file counts as an empty one.
std::string read_regular(const std::string& path, std::string& text) {
  // O_NONBLOCK: opening a FIFO that the worker created would block otherwise.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!file) {
    return errno == ENOENT ? "" : std::string("cannot be read: ") + std::strerror(errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return "is not a regular file";
  }
  text.resize(kMaxBytes + 1);
  std::size_t size = 0;
  ssize_t count = 0;
  do {
    count = ::read(file.get(), text.data() + size, text.size() - size);
    size += count > 0 ? static_cast<std::size_t>(count) : 0;
  } while ((count > 0 && size < text.size()) || (count < 0 && errno == EINTR));
  text.resize(size);
  if (count < 0) {
    return std::string("cannot be read: ") + std::strerror(errno);
  }
  return size > kMaxBytes ? "is larger than 1 MiB" : "";
}

/// Parses `text`. Returns a discarded value if it is not JSON, or nested too deeply.
Json parse(const std::string& text) {
  return json_form(text).depth > kMaxDepth
             ? Json(Json::value_t::discarded)
             : json_from_text<Json>(text, nullptr, /*allow_exceptions=*/false);
}

std::optional<std::string> text_of(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? std::optional(found->get<std::string>())
                                                     : std::nullopt;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Parses both forms that PyTorch writes: {"message": "..."}, and {"message": {"message": "...",
/// "extraInfo": {"py_callstack": "..."}}}. Empty if `text` has neither form.
std::optional<ErrorFile> understood(const std::string& text) {
  const Json document = parse(text);
  if (const auto plain = text_of(document, "message")) {
    return ErrorFile{*plain, {}, text};
  }
  const Json message = document.is_object() ? document.value("message", Json()) : Json();
  const auto words = text_of(message, "message");
  if (!words) {
    return std::nullopt;
  }
  const auto callstack = text_of(message.value("extraInfo", Json()), "py_callstack");
  return ErrorFile{*words, lines_of(callstack.value_or("")), text};
}

/// Builds an error file from a worker's report.
Json composed(const WorkerReport& worker) {
  std::string callstack;
  for (const std::string& line : worker.traceback) {
    callstack += line + "\n";
  }
  const auto seconds = std::chrono::floor<std::chrono::seconds>(worker.ended_at);
  const std::string message = worker.message().empty() ? how_it_failed(worker) : worker.message();
  return {{"message",
           {{"message", message},
            {"extraInfo",
             {{"py_callstack", callstack},
              {"timestamp", std::to_string(seconds.time_since_epoch().count())}}}}}};
}

}  // namespace

ErrorFile read_error_file(const std::string& path) {
  std::string text;
  const std::string reason = path.empty() ? "" : read_regular(path, text);
  if (!reason.empty()) {
    return {"(" + path + " " + reason + ")", {}, {}};
  }
  if (text.empty()) {
    return {};
  }
  return understood(text).value_or(
      ErrorFile{"(" + path + " is not an error file in PyTorch's format)", {}, {}});
}

std::string root_cause_file(const WorkerReport& worker, const std::string& text) {
  Json document = text.empty() ? composed(worker) : parse(text);
  if (worker.end && document.is_object() && document.contains("message") &&
      document["message"].is_object()) {
    const supervision::ProcessEnd& end = *worker.end;
    document["message"]["errorCode"] =
        end.kind == supervision::ProcessEnd::Kind::killed ? -end.value : end.shell_status();
  }
  return text_of_json(document, -1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

}  // namespace acc::launcher::report
