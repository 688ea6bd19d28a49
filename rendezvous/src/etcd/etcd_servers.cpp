// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd_client.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace acc::rendezvous {

std::vector<std::string> servers_in_etcd(const EtcdAddress& address) try {
  using Json = EtcdClient::Json;
  constexpr std::chrono::milliseconds kPatience{1'000};
  EtcdClient client(address, kPatience);
  const Json leader = client.post("/v3/kv/range", {{"key", to_base64(address.prefix + "/leader")}});
  const Json all =
      client.post("/v3/kv/range", {{"key", to_base64(address.prefix + "/servers/")},
                                   {"range_end", to_base64(address.prefix + "/servers0")}});
  std::vector<std::string> servers;
  for (const Json* reply : {&leader, &all}) {
    for (const Json& kv : reply->value("kvs", Json::array())) {
      const std::string server = from_base64(kv.value("value", ""));
      if (!server.empty() && std::ranges::find(servers, server) == servers.end()) {
        servers.push_back(server);
      }
    }
  }
  return servers;
} catch (const EtcdUnavailable& error) {
  if (error.is_refused) {
    throw Error(Errc::config, error.what());
  }
  throw;
}

}  // namespace acc::rendezvous
