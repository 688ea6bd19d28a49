// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/clients.hpp"
#include "store/key_table.hpp"
#include "wire/request_decoder.hpp"

#include <memory>

namespace acc::rendezvous {

/// The TCPStore clients: gives each one a session with the keys. Owns the decoder, which is lent to
/// the session that is served.
class StoreClients {
 public:
  StoreClients(const Clients& clients, const ServerOptions& options, KeyTable& keys)
      : clients_(clients), options_(options), keys_(keys), decoder_(options.max_frame_bytes) {}

  /// Creates the protocol handler of a client.
  std::unique_ptr<ProtocolHandler> open(Connection::Id id, const ClientFacts& facts);
  /// Takes over changed options.
  void reconfigure();

 private:
  const Clients& clients_;
  const ServerOptions& options_;
  KeyTable& keys_;
  wire::RequestDecoder decoder_;
};

}  // namespace acc::rendezvous
