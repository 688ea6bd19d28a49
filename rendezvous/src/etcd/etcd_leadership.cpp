// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd_leadership.hpp"

#include "acc/base/log.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <time.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous {
namespace {

using std::chrono::milliseconds;

/// Returns the time since the boot in ms, which includes that of suspensions.
std::int64_t boot_time() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Returns the time limit of one attempt at one member: several fit into a lease.
milliseconds patience(const EtcdAddress& address) {
  return std::max(milliseconds(200), address.lease / 5);
}

}  // namespace

EtcdLeadership::EtcdLeadership(EtcdAddress address, std::string own_address, Events events)
    : address_(std::move(address)),
      own_address_(std::move(own_address)),
      events_(std::move(events)),
      client_(address_, patience(address_)),
      key_(to_base64(address_.prefix + "/leader")),
      thread_([this] { work(); }) {}

EtcdLeadership::~EtcdLeadership() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  revoke();
}

bool EtcdLeadership::is_certain() const noexcept {
  return boot_time() < certain_until_;
}

void EtcdLeadership::resign(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    resigns_ = why;
  }
  changed_.notify_all();
}

void EtcdLeadership::work() {
  milliseconds next{0};
  while (pause(next)) {
    std::string why;
    {
      const std::lock_guard lock(mutex_);
      why = std::exchange(resigns_, {});
    }
    if (leads_ && !why.empty()) {
      lose(why);
    }
    try {
      leads_ ? renew() : campaign();
      has_answer_ = true;
      next = leads_ ? address_.lease / 4 : std::min(milliseconds(500), address_.lease / 4);
    } catch (const std::exception& error) {
      logger(Component::rendezvous).debug("election: {}", error.what());
      if (leads_ && !is_certain()) {
        lose(fmt::format("etcd has not renewed the lease for {} ms: {}", address_.lease.count(),
                         error.what()));
      } else if (!leads_ && leader_ != "etcd") {
        leader_ = "etcd";  // said once
        logger(Component::rendezvous).warn("no election: {}", error.what());
      }
      next = std::min(milliseconds(200), address_.lease / 8);
      const auto* unavailable = dynamic_cast<const EtcdUnavailable*>(&error);
      if (unavailable != nullptr && unavailable->is_refused && !std::exchange(has_answer_, true)) {
        events_.on_refused(error.what());
      }
    }
  }
}

/// Waits; returns false if the thread must end.
bool EtcdLeadership::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return ends_ || !resigns_.empty(); });
  return !ends_;
}

/// Becomes the leader if there is none.
void EtcdLeadership::campaign() {
  const std::int64_t before = boot_time();
  if (lease_ == 0) {
    const auto seconds =
        std::chrono::ceil<std::chrono::seconds>(address_.lease).count();  // etcd counts seconds
    const std::int64_t lease =
        etcd_number(client_.post("/v3/lease/grant", {{"TTL", seconds}}), "ID");
    client_.post("/v3/kv/put", {{"key", to_base64(address_.prefix + "/servers/" + own_address_)},
                                {"value", to_base64(own_address_)},
                                {"lease", std::to_string(lease)}});
    lease_ = lease;  // from now on: an attempt without that key is repeated
    renewed_at_ = before;
  } else if (before - renewed_at_ > address_.lease.count() / 4) {
    renew();
    if (lease_ == 0) {
      return;  // it has run out: a key without a lease would never be free again
    }
  }
  const Json put = {
      {"request_put",
       {{"key", key_}, {"value", to_base64(own_address_)}, {"lease", std::to_string(lease_)}}}};
  const Json read = {{"request_range", {{"key", key_}}}};
  const Json is_free = {
      {"key", key_}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", "0"}};
  const Json reply = client_.post("/v3/kv/txn", {{"compare", Json::array({is_free})},
                                                 {"success", Json::array({put})},
                                                 {"failure", Json::array({read})}});
  std::int64_t token = 0;
  std::string leader;
  if (reply.value("succeeded", false)) {
    token = etcd_number(reply.at("header"), "revision");
  } else {
    const Json& range = reply.at("responses").at(0).at("response_range");
    const Json kvs = range.value("kvs", Json::array());
    if (kvs.empty()) {
      return;  // the last leader has just gone
    }
    leader = from_base64(kvs.at(0).value("value", ""));
    // A transaction whose reply was lost may have made this server the leader.
    token =
        etcd_number(kvs.at(0), "lease") == lease_ ? etcd_number(kvs.at(0), "create_revision") : 0;
  }
  if (token == 0) {
    if (std::exchange(leader_, leader) != leader) {
      events_.on_leader(leader);
    }
    return;
  }
  leads_ = true;
  leader_.clear();
  // One tenth less: clocks do not run at exactly the same speed.
  certain_until_ = renewed_at_ + address_.lease.count() * 9 / 10;
  events_.on_elected(token);
}

void EtcdLeadership::renew() {
  const std::int64_t before = boot_time();
  const Json reply = client_.post("/v3/lease/keepalive", {{"ID", std::to_string(lease_)}});
  const Json result = reply.value("result", Json::object());
  const bool is_late = leads_ && !is_certain();
  if (etcd_number(result, "TTL") <= 0 || is_late) {
    if (leads_) {
      lose("its lease in etcd has run out");
    }
    lease_ = 0;
    return;
  }
  renewed_at_ = before;
  if (leads_) {
    certain_until_ = before + address_.lease.count() * 9 / 10;
  }
}

void EtcdLeadership::lose(const std::string& why) {
  certain_until_ = 0;
  leads_ = false;
  events_.on_lost(why);  // first: etcd may not answer
  revoke();
}

/// Ends the lease, and with it the leadership. If that fails, it runs out.
void EtcdLeadership::revoke() noexcept {
  certain_until_ = 0;
  if (const auto lease = std::exchange(lease_, 0); lease != 0) {
    try {
      client_.post("/v3/lease/revoke", {{"ID", std::to_string(lease)}});
    } catch (const std::exception& error) {
      logger(Component::rendezvous).debug("the lease is not revoked: {}", error.what());
    }
  }
}

}  // namespace acc::rendezvous
