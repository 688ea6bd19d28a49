// SPDX-License-Identifier: Apache-2.0
#include "etcd/journal_in_etcd.hpp"

#include "acc/base/log.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

// The keys, all behind PREFIX/:
//   leader             address of the leader, with its lease (EtcdLeadership)
//   servers/ADDRESS    address of a server that leads or stands by, with its lease
//   version            version of this layout, in decimal
//   current            number of the current log, in decimal
//   changes            empty; its version in etcd counts the changes
//   log/NUMBER/CHUNK   a part of a group; both numbers in 16 hexadecimal digits. The first byte is
//                      1 for the last part of a group and 0 for the others; the rest are its bytes
// Every change is a transaction that compares the creation of `leader` with the token, and the
// version of `changes` with the number of changes before it: a request whose reply was lost is sent
// again, and the first one must not take effect later. A rewritten log has the next number; chunks
// of other logs, and those behind the last whole group, are remains of a server that lost the
// leadership.
namespace acc::rendezvous {
namespace {

constexpr std::string_view kVersion = "3";
// etcd refuses requests of more than 1.5 MiB, which have the value in base64.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// Chunks per request while the log is read: more if they are small.
constexpr std::int64_t kFewestChunks = 8;
constexpr std::int64_t kMostChunks = 256;
constexpr std::size_t kLargePage = std::size_t{8} << 20;

constexpr std::chrono::milliseconds kPatience{2'000};
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

JournalInEtcd::JournalInEtcd(const EtcdAddress& address, std::int64_t token,
                             std::function<bool()> is_certain)
    : client_(address, std::min(kPatience, address.lease / 2)),
      prefix_(address.prefix),
      token_(token),
      is_certain_(std::move(is_certain)) {}

std::string JournalInEtcd::key(std::string_view name) const {
  return fmt::format("{}/{}", prefix_, name);
}

std::string JournalInEtcd::chunk_key(std::uint64_t log, std::uint64_t number) const {
  return fmt::format("{}/log/{:016x}/{:016x}", prefix_, log, number);
}

JournalInEtcd::Json JournalInEtcd::put(const std::string& name, std::string_view value) {
  return {{"request_put", {{"key", to_base64(name)}, {"value", to_base64(value)}}}};
}

/// Returns the operation that deletes the keys from `from` to `to`, without `to`.
JournalInEtcd::Json JournalInEtcd::deletion(const std::string& from, const std::string& to) {
  return {{"request_delete_range", {{"key", to_base64(from)}, {"range_end", to_base64(to)}}}};
}

/// Repeats a request until etcd has answered. Throws LeadershipLost if this server may no longer
/// lead before.
JournalInEtcd::Json JournalInEtcd::post(const std::string& path, const Json& request) {
  while (true) {
    try {
      return client_.post(path, request);
    } catch (const EtcdUnavailable& error) {
      if (!is_certain_()) {
        throw LeadershipLost(error.what());
      }
      std::this_thread::sleep_for(kPause);
    }
  }
}

/// Makes changes once if this server leads; returns the revision of etcd.
std::int64_t JournalInEtcd::change(Json operations) {
  const std::string leader = key("leader");
  const std::string changes = key("changes");
  const auto is_equal = [](const std::string& name, const char* target, const char* field,
                           std::int64_t value) {
    return Json{{"key", to_base64(name)},
                {"target", target},
                {"result", "EQUAL"},
                {field, std::to_string(value)}};
  };
  const auto range = [](const std::string& name) {
    return Json{{"request_range", {{"key", to_base64(name)}}}};
  };
  operations.push_back(put(changes, ""));
  const Json reply =
      post("/v3/kv/txn",
           {{"compare", Json::array({is_equal(leader, "CREATE", "create_revision", token_),
                                     is_equal(changes, "VERSION", "version", num_changes_)})},
            {"success", std::move(operations)},
            {"failure", Json::array({range(leader), range(changes)})}});
  if (!reply.value("succeeded", false)) {
    const auto number = [&](std::size_t place, const char* field) {
      const Json kvs =
          reply.at("responses").at(place).at("response_range").value("kvs", Json::array());
      return kvs.empty() ? 0 : etcd_number(kvs.at(0), field);
    };
    // The reply to an earlier attempt may have been lost.
    if (number(0, "create_revision") != token_ || number(1, "version") != num_changes_ + 1) {
      throw LeadershipLost("another server has become the leader");
    }
  }
  ++num_changes_;
  return etcd_number(reply.at("header"), "revision");
}

void JournalInEtcd::read(const Receive& receive) {
  const auto find = [&](std::string_view name) {
    const Json kvs =
        post("/v3/kv/range", {{"key", to_base64(key(name))}}).value("kvs", Json::array());
    return kvs.empty() ? Json::object() : kvs.at(0);
  };
  const auto value_of = [&](std::string_view name) {
    return from_base64(find(name).value("value", ""));
  };
  const std::string version = value_of("version");
  if (!version.empty() && version != kVersion) {
    throw Error(Errc::not_supported,
                fmt::format("the keys {}/ in etcd have version {}, expected {}: they are those of "
                            "another acc-rendezvous; choose another prefix",
                            prefix_, printable(version), kVersion));
  }
  if (const std::string current = value_of("current"); !current.empty()) {
    const auto number = parse_integer(current);
    if (!number || *number < 1) {
      throw Error(Errc::config, fmt::format("the key {} in etcd is damaged: expected a number, "
                                            "got \"{}\"",
                                            key("current"), printable(current)));
    }
    log_ = static_cast<std::uint64_t>(*number);
  }
  num_changes_ = etcd_number(find("changes"), "version");
  change(Json::array({put(key("version"), kVersion), put(key("current"), std::to_string(log_)),
                      deletion(key("log/"), chunk_key(log_, 0)),
                      deletion(chunk_key(log_ + 1, 0), key("log0"))}));
  read_log(receive);
}

void JournalInEtcd::read_log(const Receive& receive) {
  const std::string end = chunk_key(log_ + 1, 0);
  std::int64_t limit = kFewestChunks;
  std::string group;
  std::uint64_t at = 0;  // number of the next chunk
  for (bool has_more = true; has_more;) {
    const Json page = post("/v3/kv/range", {{"key", to_base64(chunk_key(log_, at))},
                                            {"range_end", to_base64(end)},
                                            {"limit", std::to_string(limit)}});
    has_more = page.value("more", false);
    std::size_t bytes = 0;
    for (const Json& kv : page.value("kvs", Json::array())) {
      const std::string name = from_base64(kv.at("key").get_ref<const std::string&>());
      const auto damaged = [&](std::string_view what) {
        return Error(Errc::config, fmt::format("the key {} in etcd is damaged: {}. Restore the "
                                               "keys {}/, or delete them to begin without keys "
                                               "and jobs",
                                               printable(name), what, prefix_));
      };
      if (name != chunk_key(log_, at)) {
        throw damaged(fmt::format("expected {} before it", chunk_key(log_, at)));
      }
      const std::string chunk = from_base64(kv.value("value", ""));
      if (chunk.empty()) {
        throw damaged("it is empty");
      }
      ++at;
      bytes += chunk.size();
      group.append(chunk, 1);
      if (chunk.front() == 1) {
        if (!receive(group)) {
          throw damaged("an entry is longer than its group");
        }
        group.clear();
        next_ = at;
      }
    }
    limit = std::clamp(bytes > kLargePage ? limit / 2 : limit * 2, kFewestChunks, kMostChunks);
  }
  if (at > next_) {
    logger(Component::rendezvous)
        .warn("the last {} chunks of the log in etcd are an unfinished write, which is removed",
              at - next_);
    change(Json::array({deletion(chunk_key(log_, next_), end)}));
  }
}

void JournalInEtcd::put_group(std::uint64_t log, std::uint64_t& number, std::string_view group) {
  while (!group.empty()) {
    const std::string_view part = group.substr(0, kChunkBytes);
    group.remove_prefix(part.size());
    std::string chunk(1, static_cast<char>(group.empty() ? 1 : 0));
    chunk += part;
    change(Json::array({put(chunk_key(log, number), chunk)}));
    ++number;
  }
}

void JournalInEtcd::append(std::string_view group) {
  put_group(log_, next_, group);
}

void JournalInEtcd::replace(std::span<const std::string> groups) {
  const std::uint64_t log = log_ + 1;
  std::uint64_t number = 0;
  for (const std::string& group : groups) {
    put_group(log, number, group);
  }
  const std::int64_t revision = change(Json::array(
      {put(key("current"), std::to_string(log)), deletion(chunk_key(log_, 0), chunk_key(log, 0))}));
  log_ = log;
  next_ = number;
  try {  // etcd keeps all old values until then
    client_.post("/v3/kv/compaction", {{"revision", std::to_string(revision)}});
  } catch (const Error& error) {
    logger(Component::rendezvous).debug("etcd is not compacted: {}", error.what());
  }
}

}  // namespace acc::rendezvous
