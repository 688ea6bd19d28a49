#include "acc/base/log.hpp"

#include "acc/base/text.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

namespace acc {
namespace {

/// Escapes control characters in log messages, because messages contain names and texts from
/// untrusted sources (workers, files, other machines).
class PrintableSink : public spdlog::sinks::stderr_sink_mt {
 public:
  void log(const spdlog::details::log_msg& message) override {
    const std::string payload = printable_lines({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg shown = message;
    shown.payload = {payload.data(), payload.size()};
    spdlog::sinks::stderr_sink_mt::log(shown);
  }
};

// spdlog keeps the loggers in a process-wide registry. The mutex makes "find or create" one step
// and guards rank_tag.
std::mutex registry_mutex;
std::string rank_tag;  // " [rank/world_size]", or empty in the launcher

std::string pattern() {
  return "%H:%M:%S.%e %^%l%$ %n" + rank_tag + ": %v";
}

/// Returns the level of a logger: its entry in ACC_LOG, else ACC_LOG_LEVEL, else info.
spdlog::level::level_enum level_of(std::string_view name) {
  if (const char* list = std::getenv("ACC_LOG")) {
    std::string_view rest = list;
    while (!rest.empty()) {
      const std::string_view entry = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const auto colon = entry.find(':');
      if (colon != std::string_view::npos && entry.substr(0, colon) == name) {
        return spdlog::level::from_str(std::string(entry.substr(colon + 1)));
      }
    }
  }
  const char* level = std::getenv("ACC_LOG_LEVEL");
  return level != nullptr ? spdlog::level::from_str(level) : spdlog::level::info;
}

}  // namespace

std::shared_ptr<spdlog::logger> logger(std::string_view name) {
  const std::lock_guard lock(registry_mutex);
  const std::string key(name);
  if (auto found = spdlog::get(key)) {
    return found;
  }
  auto made = std::make_shared<spdlog::logger>(key, std::make_shared<PrintableSink>());
  made->set_level(level_of(name));
  made->set_pattern(pattern());
  spdlog::register_logger(made);
  return made;
}

void set_log_rank(int rank, int world_size) {
  const std::lock_guard lock(registry_mutex);
  rank_tag = " [" + std::to_string(rank) + "/" + std::to_string(world_size) + "]";
  spdlog::apply_all(
      [](const std::shared_ptr<spdlog::logger>& each) { each->set_pattern(pattern()); });
}

}  // namespace acc
